"""Other suites as parts of this one: MindFormers as a second model backend."""
