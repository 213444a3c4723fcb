"""What single settings of other suites become here, for tools/migrate/tests."""
