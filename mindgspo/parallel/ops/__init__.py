"""Operators of models, by device: MindSpore's fused ones, our C++ kernels, compositions."""
