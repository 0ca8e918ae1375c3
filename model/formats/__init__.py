"""File formats of models: `transformers`, ONNX, `peft`."""
