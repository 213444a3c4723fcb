from mindspore.ops.operations import nn_ops as nn_ops
