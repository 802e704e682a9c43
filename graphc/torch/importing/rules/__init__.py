"""Import rules: functions that convert ATen operators into values, registered by each module."""
