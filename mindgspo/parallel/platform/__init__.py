"""MindSpore, the device and the process: settings, start, private API, signs of life."""
