"""Other suites: MindFormers as a second model backend (`mindformers`), and configurations of MindFormers, MindRLHF and
verl as experiments of this project (`foreign_configs`)."""
