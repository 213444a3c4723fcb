"""Hot operators in C++ behind a plain C interface (`kernels.h`), for the emulated card and for graphs on CPU.

build      compiles the sources for this processor, into the user's cache
cache      that cache: files that are whole, and that nobody else could have written
binding    the operators as Python functions of tensors
"""
