"""Updates, counters and rates of optimizers, which the op table leaves out, as samples."""

from ops.samples import Sample, direct

from graphc.ops import (
    batch_norm,
    batch_total,
    changed_state,
    learning_rate,
    linear_cross_entropy,
    optimizer_update,
    update,
)

SHAPE = (3, 4)
MOMENTS = update.AdamAttributes(0.9, 0.999, 1e-8, 0.1)
PLAIN = update.AdamAttributes(0.9, 0.999, 1e-8, 0.0)
RMS = optimizer_update.RmspropAttributes(0.9, 1e-3, 0.1)
RMS_MOMENTUM = optimizer_update.RmspropMomentumAttributes(0.9, 1e-3, 0.1, 0.5)
FLOAT, OK = "float64", "bool"


def sample(label, op, attributes, shapes, dtypes=None):
    dtypes = dtypes or (FLOAT,) * len(shapes)
    return Sample(
        op.name, direct(op, attributes), shapes, None, dtypes=dtypes, domain=(0.1, 2), label=label
    )


ADAM = (*[SHAPE] * 4, (), ())

UPDATES = [
    sample("", update.SgdUpdate, update.SgdAttributes(0.1), (SHAPE, SHAPE, ())),
    sample(" plain", update.SgdUpdate, update.SgdAttributes(0.0), (SHAPE, SHAPE, ())),
    sample(
        " guarded", update.SgdUpdate, update.SgdAttributes(0.1), (SHAPE, SHAPE, (), ()),
        (FLOAT, FLOAT, FLOAT, OK),
    ),
    sample("", update.MomentumUpdate, update.MomentumAttributes(0.9, 0.1), (*[SHAPE] * 3, ())),
    sample("", update.AdamUpdate, MOMENTS, ADAM),
    sample(" plain", update.AdamUpdate, PLAIN, ADAM),
    sample(" guarded", update.AdamUpdate, MOMENTS, (*ADAM, ()), (*(FLOAT,) * 6, OK)),
    sample(" odd", update.AdamUpdate, MOMENTS, (*[(1031,)] * 4, (), ())),
    sample(
        "", optimizer_update.NesterovUpdate, update.MomentumAttributes(0.9, 0.1),
        (*[SHAPE] * 3, ()),
    ),
    sample(
        "", optimizer_update.AdagradUpdate, optimizer_update.AdagradAttributes(1e-3, 0.1),
        (*[SHAPE] * 3, ()),
    ),
    sample(
        "", optimizer_update.RmspropUpdate, RMS, (*[SHAPE] * 3, ()),
    ),
    sample(
        "", optimizer_update.RmspropMomentumUpdate, RMS_MOMENTUM, (*[SHAPE] * 4, ()),
    ),
    sample(
        "", optimizer_update.CenteredRmspropUpdate, RMS, (*[SHAPE] * 4, ()),
    ),
    sample(
        "", optimizer_update.CenteredRmspropMomentumUpdate, RMS_MOMENTUM, (*[SHAPE] * 5, ()),
    ),
    sample(
        "", optimizer_update.LionUpdate, optimizer_update.LionAttributes(0.9, 0.99),
        (*[SHAPE] * 3, (), ()),
    ),
    sample(
        "", optimizer_update.LambUpdate, optimizer_update.LambAttributes(0.9, 0.99),
        (*[SHAPE] * 5, (), ()),
    ),
    sample(
        " guarded", optimizer_update.MuonUpdate, optimizer_update.MuonAttributes(0.9, 0.5),
        (*[SHAPE] * 4, (), (), ()), (*(FLOAT,) * 6, OK),
    ),
    sample("", update.AdamwUpdate, update.AdamwAttributes(0.9, 0.999, 1e-8), (*ADAM, ())),
    sample(
        "", batch_norm.RunningMeanUpdate, batch_norm.RunningMeanAttributes(0.1), ((7,), (7,))
    ),
    sample(
        "", batch_norm.RunningVarianceUpdate,
        batch_norm.RunningVarianceAttributes(0.1, 1e-5, 1.25), ((7,), (7,)),
    ),
    sample(
        "", update.LossScaleUpdate, update.LossScaleAttributes(2.0), ((), (), ()),
        (FLOAT, FLOAT, OK),
    ),
    *(
        Sample(
            "learning_rate", direct(
                learning_rate.LearningRate,
                learning_rate.LearningRateAttributes(form, 0.5, 0.01, 9, warmup, "float64"),
            ),
            ((),), None, dtypes=("int64",), int_limit=9, label=f" {form} {warmup}",
        )
        for form in learning_rate.LEARNING_RATE_FORMS
        for warmup in (0, 8)
    ),
    sample(
        "", update.AdamCorrection, update.BetaAttributes(0.9, 0.999), ((), ()), (FLOAT, "int64")
    ),
    sample("", update.Increment, None, ((),), ("int64",)),
    sample("", changed_state.Replacement, None, (SHAPE, SHAPE)),
    sample("", batch_total.BatchCount, None, ((),)),
    sample("", batch_total.BatchSum, None, ((),)),
    sample("", changed_state.WithChange, None, (SHAPE, (7,), (7,))),
    sample("", linear_cross_entropy.WithGradient, None, ((), SHAPE, SHAPE)),
]  # fmt: skip
