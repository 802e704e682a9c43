"""Values that attributes of ops cannot have: what `test_attributes` puts into each of them."""

NAN, INF = float("nan"), float("inf")
FAR, HUGE = 10**12, 2**63
NOT_FINITE = (NAN, INF, -INF)
PAIRS = ((0, 1), (1, 0), (-1, 1), (1, -1), (1,), (1, 1, 1), (HUGE, 1), (1, FAR), 2)
EXTENTS = (*PAIRS, (FAR, FAR))
WINDOW = {
    "stride": PAIRS,
    "padding": ((-1, 0), (0, -1), (1,), (HUGE, 0), (0, FAR), (0, 0, 0), (0, 0, -1, 0)),
}
POOL = {
    "window": (*PAIRS, (FAR, FAR), (2**20, 2**20)), "stride": PAIRS,
    "padding": (*WINDOW["padding"], (2, 0), (0, 0, 0, 2), (FAR, FAR)), "dilation": (*PAIRS, (6, 1)),
}  # fmt: skip
CONVOLUTION = {**WINDOW, "dilation": PAIRS, "groups": (0, -1, 3, FAR, HUGE)}
AXIS = {"axis": (-1, 4, FAR, HUGE)}
AXES = {"axes": ((-1,), (4,), (1, 0), (0, 0), (HUGE,), (True,), 0)}
FRAME = {
    "shape": ((5,), (30, 1), (5, 6, 1), (5, FAR), (0, 6), ()),
    "statistic_axes": ((0,), (2,), (-1,), (), (1, 1), (HUGE,)),
    "parameter_axes": ((0,), (2,), (-1,), (), (0, 1), (1, 1), (HUGE,)),
}
EPSILON = (0.0, -1e-5, *NOT_FINITE, 10**400)
MOMENTUM = (-0.1, 1.1, *NOT_FINITE)
DECAY = (-0.1, 1e300, *NOT_FINITE)
BETA = (-0.1, 1.0, 1.5, *NOT_FINITE)
RMS = {"alpha": BETA, "epsilon": DECAY, "weight_decay": DECAY}
NUMBER = (*NOT_FINITE, 10**400, "1", True)
FLOAT8_DTYPE = ("float32", "bfloat16", "float8", "", 8)
STREAM = (-1, 2**32, HUGE, 0.5)
ABOVE_0 = (0.0, -1.0, *NOT_FINITE)
DTYPE = ("", "half", "f99", None, 3)
INDEX_DTYPE = ("", "int16", "uint8", "float32", None)
BATCH = (-1, 2, 4, FAR, HUGE, 0.5)
SHAPE = ((0,), (-3,), (FAR, FAR), (HUGE,), (2.5,), (1,) * 65, 12)
PART = (-0.1, 1.1, *NOT_FINITE)
PADDING = (-1, HUGE, 0.5, True)
LABELS = ((1, 2), (HUGE,), (True,), 0)
FACTOR = (0, -1, FAR, HUGE)
MAP = {"axis": (-1, 4, FAR, HUGE, 2.5), "extent": (0, -1, FAR, HUGE, 2.5, 1)}
REGIONS = {
    "bins": (*PAIRS, (FAR, FAR)),
    "ratio": (-1, 1025, FAR, HUGE, 0.5),
    "scale": (0.0, -1.0, *NOT_FINITE),
}
PLACES = {"form": ("", "bilinear", None), "outside": ("", "border", None)}
UNFOLD = {
    "window": (0, -1, 4, FAR, HUGE),
    "stride": (0, -1, 3, HUGE),
    "dilation": (0, 5, HUGE),
    "before": (-1, 9, HUGE, 1.5),
    "behind": (-1, 9, HUGE),
    "axis": (-1, 4, FAR, HUGE),
}
RESIZE = {
    **MAP,
    "scale": (0.0, -1.0, 9.0, 10**400, *NOT_FINITE),
    "form": ("", "bilinear", None),
    "coordinates": ("", "corners", None),
    "rounding": ("", "half_even", None),
    "cubic": (1e300, *NOT_FINITE),
    "region": ((0.0,), (NAN, 1.0), (0.0, INF), 0.5),
    "value": (10**400, "1", None),
}
MEMBERS = ((), ("",), ("neg",), ("neg(x9)",), ("softmax(x0, axis=0)",), ("neg(x0, value=nan)",))

RANKS = {"ranks": (0, -1, 2**17, HUGE, 1.5)}
RATE = (-0.1, 1.0, 1.5, *NOT_FINITE)
ATTENTION = {"scale": NOT_FINITE, "from_first": (True,)}

REFUSED = {
    "adagrad_update": {"epsilon": DECAY, "weight_decay": DECAY},
    "adam_correction": {"beta1": BETA, "beta2": BETA},
    "adam_update": {"beta1": BETA, "beta2": BETA, "epsilon": DECAY, "weight_decay": DECAY},
    "adamw_update": {"beta1": BETA, "beta2": BETA, "epsilon": DECAY},
    "adaptive_average_pool2d": {"extent": EXTENTS},
    "adaptive_average_pool2d_gradient": {"extent": EXTENTS},
    "all_gather": RANKS,
    "all_reduce": RANKS,
    "argmax": {**AXIS, "index": INDEX_DTYPE},
    "argmin": {**AXIS, "index": INDEX_DTYPE},
    "attention": ATTENTION,
    "attention_gradient": ATTENTION,
    "average_pool2d": POOL,
    "average_pool2d_gradient": {**POOL, "extent": (*EXTENTS, (1, 1), (64, 64))},
    "batch_norm": {"epsilon": EPSILON, "momentum": MOMENTUM},
    "broadcast": {**RANKS, "root": (-1, 1, HUGE, 0.5)},
    "broadcast_to": {"shape": (*SHAPE, (7,), ())},
    "bitcast": {"dtype": (*DTYPE, "float32", "bool")},
    "cast": {"dtype": DTYPE},
    "celu": {"alpha": ABOVE_0},
    "celu_gradient": {"alpha": ABOVE_0},
    "clip": {"low": NUMBER, "high": NUMBER},
    "clip_gradient": {"low": NUMBER, "high": NUMBER},
    "concat": AXIS,
    "centered_rmsprop_momentum_update": {**RMS, "momentum": MOMENTUM},
    "centered_rmsprop_update": RMS,
    "conv2d": CONVOLUTION,
    "conv2d_input_gradient": {**CONVOLUTION, "extent": (*EXTENTS, (1, 1), (64, 64))},
    "conv2d_weight_gradient": {
        **CONVOLUTION, "window": (*EXTENTS, (7, 7)), "accumulate": (True,),
    },
    "cross_entropy": {"smoothing": PART, "ignored": LABELS},
    "cross_entropy_gradient": {"smoothing": PART, "ignored": LABELS},
    "cross_entropy_with_slopes": {"smoothing": PART, "ignored": LABELS, "padding": PADDING},
    "cumsum": AXIS,
    "dropout": {"rate": RATE, "stream": STREAM},
    "dropped_attention": {**ATTENTION, "rate": RATE, "stream": STREAM},
    "dropped_attention_gradient": {**ATTENTION, "rate": RATE, "stream": STREAM},
    "elu": {"alpha": ABOVE_0},
    "elu_gradient": {"alpha": ABOVE_0},
    "fold_axis": {**UNFOLD, "extent": (*MAP["extent"], 13)},
    "full": {"shape": SHAPE, "dtype": DTYPE, "value": (10**400, "1", None)},
    "fused": {"members": MEMBERS, "results": ((), (9,), (-1,), (HUGE,), (0, 0))},
    "fused_reduce": {
        "members": MEMBERS[1:], "reduction": ("", "softmax", "neg"),
        "axes": ((-1,), (4,), (0, 0), (HUGE,)), "order": ((), (0,), (0, 0), (0, 7), (HUGE, 0)),
        "after": MEMBERS[1:],
    },
    "gather_gradient": {"rows": (0, -1, FAR * FAR, HUGE, 1.5), "accumulate": (True,)},
    "gather_nd": {"batch": BATCH},
    "group_norm": {"groups": (0, -1, 3, HUGE), "epsilon": EPSILON},
    "huber": {"delta": EPSILON},
    "huber_gradient": {"delta": EPSILON},
    "label_weight": {"ignored": LABELS},
    "hard_sigmoid": {"alpha": NUMBER, "beta": NUMBER},
    "hard_sigmoid_gradient": {"alpha": NUMBER, "beta": NUMBER},
    "interpolate": PLACES,
    "interpolate_input_gradient": {
        **PLACES, "extents": ((0, 2), (-1, 3), (3,), (), (FAR, 1), (HUGE, 1), 3),
    },
    "interpolate_place_gradient": {**PLACES, "form": (*PLACES["form"], "nearest")},
    "lamb_direction": {
        "beta1": BETA, "beta2": BETA, "epsilon": DECAY, "weight_decay": DECAY,
    },
    "lamb_update": {"beta1": BETA, "beta2": BETA},
    "layer_norm": {"epsilon": EPSILON},
    "leaky_relu": {"slope": ABOVE_0},
    "leaky_relu_gradient": {"slope": ABOVE_0},
    "learning_rate": {
        "form": ("", "square", None), "peak": DECAY, "floor": (*DECAY, 0.6),
        "steps": (0, -1, 1.5), "warmup": (-1, 9, FAR, 0.5), "dtype": (*DTYPE, "int32", "bool"),
    },
    "linear": {"activation": ("", "tanh", None)},
    "lion_update": {"beta1": BETA, "beta2": BETA},
    "log_softmax": AXIS,
    "log_softmax_gradient": AXIS,
    "loss_scale_update": {"interval": (0.0, -1.0, *NOT_FINITE)},
    "masked_softmax": AXIS,
    "matmul": {"accumulate": (True,)},
    "max": AXES,
    "max_pool2d": {**POOL, "window": (*POOL["window"], (17, 17))},
    "max_pool2d_gradient": {**POOL, "extent": (*EXTENTS, (1, 1), (64, 64))},
    "max_pool2d_select": POOL,
    "mean": AXES,
    "min": AXES,
    "momentum_update": {"momentum": MOMENTUM, "weight_decay": DECAY},
    "muon_update": {"momentum": BETA, "factor": (-0.1, *NOT_FINITE)},
    "nesterov_update": {"momentum": MOMENTUM, "weight_decay": DECAY},
    "norm_bias_gradient": {**FRAME, "statistic_axes": FRAME["statistic_axes"][1:]},
    "norm_gradients": FRAME,
    "norm_input_gradient": FRAME,
    "norm_parameter_gradients": FRAME,
    "norm_scale_gradient": FRAME,
    "one_hot": {"classes": (0, -1, FAR * FAR, HUGE, 1.5), "dtype": DTYPE},
    "normal": {
        "shape": SHAPE, "dtype": (*DTYPE, "int32"), "mean": NUMBER, "scale": (*NUMBER, -1.0),
        "stream": STREAM,
    },
    "pad_slice": {
        "shape": (*SHAPE, (1, 1)), "starts": ((-1, 0), (9, 9), (0,), (HUGE, 0)),
        "stops": ((0, 0), (99, 99), (1,), (-1, -1)), "steps": ((0, 1), (-1, 1), (1,), (FAR, 1)),
        "value": (10**400, "1", None),
    },
    "pad_axis": {
        **MAP, "extent": (*MAP["extent"], 5), "before": (-1, 6, HUGE, 1.5), "mode": ("", "mirror"),
    },
    "pad_axis_gradient": {
        **MAP, "extent": (*MAP["extent"][:-1], 8), "before": (-1, 6, HUGE, 1.5),
        "mode": ("", "mirror"),
    },
    "power": {"value": NUMBER},
    "reduce_scatter": RANKS,
    "quantize": {"dtype": FLOAT8_DTYPE},
    "quantize_both": {"dtype": FLOAT8_DTYPE},
    "quantize_turned": {"dtype": FLOAT8_DTYPE},
    "reshape": {"shape": (*SHAPE, (7,), ())},
    "reverse": {"axes": (*AXES["axes"], ())},
    "resize_axis": RESIZE,
    "resize_axis_gradient": {**RESIZE, "scale": (*RESIZE["scale"], 0.5)},
    "rms_norm": {"epsilon": EPSILON},
    "roi_align": REGIONS,
    "roi_align_gradient": {
        **REGIONS, "bins": (*REGIONS["bins"], (3, 3)),
        "maps": ((0, 1, 1), (1, -1, 1), (2, 2), (FAR, 1, 1), (1, HUGE, 1), 3),
    },
    "roi_align_max": REGIONS,
    "roi_align_max_gradient": {
        "maps": ((0, 1, 1), (1, -1, 1), (2, 2), (FAR, 1, 1), (1, HUGE, 1), 3),
    },
    "rmsprop_momentum_update": {**RMS, "momentum": MOMENTUM},
    "rmsprop_update": RMS,
    "running_mean_update": {"momentum": MOMENTUM},
    "running_variance_update": {
        "momentum": MOMENTUM, "epsilon": EPSILON, "unbiased": (0.0, -1.0, 9.0, *NOT_FINITE),
    },
    "scale": {"value": NUMBER},
    "scale_update": {"dtype": FLOAT8_DTYPE},
    "selu": {"alpha": ABOVE_0, "gamma": ABOVE_0},
    "selu_gradient": {"alpha": ABOVE_0, "gamma": ABOVE_0},
    "scaled_matmul": {"accumulate": (True,), "alpha": NUMBER},
    "scatter_nd": {"batch": BATCH},
    "scatter_nd_add": {"batch": BATCH},
    "scatter_nd_max": {"batch": BATCH},
    "scatter_nd_min": {"batch": BATCH},
    "scatter_nd_mul": {"batch": BATCH},
    "sgd_update": {"weight_decay": DECAY},
    "shift": {"value": NUMBER},
    "slice": {
        "starts": ((-1, 0), (9, 9), (0,), (HUGE, 0)), "stops": ((0, 0), (99, 99), (1,), (-1, -1)),
        "steps": ((0, 1), (-1, 1), (1,), (FAR, 1)),
    },
    "softmax": AXIS,
    "softmax_gradient": AXIS,
    "split": {"sizes": ((), (0,), (-1, 5), (99,), (HUGE,)), **AXIS},
    "sum": AXES,
    "thresholded_relu": {"threshold": NUMBER},
    "thresholded_relu_gradient": {"threshold": NUMBER},
    "top_k": {**AXIS, "k": (0, -1, 6, FAR, HUGE, 1.5), "index": INDEX_DTYPE},
    "transpose": {"permutation": ((0,), (0, 0), (-1, 0), (0, 5), (HUGE, 0), ())},
    "unfold_axis": {**UNFOLD, "extent": (*MAP["extent"], 14)},
    "uniform": {
        "shape": SHAPE, "dtype": (*DTYPE, "bool"), "low": (*NUMBER, 3.5), "high": (*NUMBER, -1.5),
        "stream": STREAM,
    },
    "upsample_bilinear2d": {"factor": FACTOR},
    "upsample_bilinear2d_gradient": {"factor": (*FACTOR, 5)},
    "upsample_nearest2d": {"factor": FACTOR},
}  # fmt: skip
"""Op → attribute → values that its type inference refuses on the operands of the op's sample."""

ANY_TRUTH = {
    ("float8_product", "wide"): "a product of 8-bit floats may be float32",
    ("argmax", "last"): "the first or the last of equal elements counts",
    ("argmin", "last"): "as for argmax",
    ("attention", "causal"): "rows see all columns, or those before them",
    ("attention_gradient", "causal"): "as for attention",
    ("dropped_attention", "causal"): "as for attention",
    ("dropped_attention_gradient", "causal"): "as for attention",
    ("conv2d_weight_gradient", "wide"): "a product of 16-bit floats may be float32",
    ("cumsum", "exclusive"): "an element's own number is added, or not",
    ("cumsum", "reverse"): "sums may begin at either end",
    ("fused_reduce", "keepdims"): "axes may stay with extent 1",
    ("matmul", "transpose_a"): "either order of two axes is a matrix, operands decide if it fits",
    ("matmul", "transpose_b"): "as for the other operand",
    ("matmul", "wide"): "a product of 16-bit floats may be float32",
    ("product_with_sums", "wide"): "as for matmul",
    ("scaled_matmul", "transpose_a"): "as for matmul",
    ("scaled_matmul", "transpose_b"): "as for matmul",
    ("scaled_matmul", "wide"): "as for matmul",
    ("roi_align", "aligned"): "centres lie at halves or at whole numbers",
    ("roi_align_gradient", "aligned"): "as going forward",
    ("roi_align_max", "aligned"): "as for means",
    ("resize_axis", "antialias"): "a kernel is as wide as elements of x, or of the result",
    ("resize_axis", "exclude_outside"): "elements at the ends stand for those beyond, or none do",
    ("resize_axis_gradient", "antialias"): "as going forward",
    ("resize_axis_gradient", "exclude_outside"): "as going forward",
    ("max", "keepdims"): "axes may stay with extent 1",
    ("mean", "keepdims"): "axes may stay with extent 1",
    ("min", "keepdims"): "axes may stay with extent 1",
    ("sum", "keepdims"): "axes may stay with extent 1",
    ("top_k", "largest"): "elements are taken from either end",
}
"""Attributes of which every value, true or false, means something, and what."""
