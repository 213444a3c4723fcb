"""Operators of models by device: MindSpore's fused ops, our C++ kernels, compositions of small ops."""
