"""Files of tensors: safetensors and MindSpore's ckpt, read by need and written in a stream, with numpy alone."""
