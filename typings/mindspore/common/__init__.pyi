from mindspore.common import initializer as initializer
