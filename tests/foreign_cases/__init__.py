"""What single settings of other suites become here, for tests/unit/foreign_configs."""
