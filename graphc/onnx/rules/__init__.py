"""Import rules: functions that convert ONNX operators into values, registered by each module."""
