"""Plans for several sizes of the arguments, made before the first step, and padding to them."""
