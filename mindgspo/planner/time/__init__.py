"""Seconds of a step before a run: one roofline estimate, calibrated by a measured run where there is one."""
