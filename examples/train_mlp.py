"""Define, plan, train: the README's example on random data, with the layers' copies shown."""

import numpy as np

import graphc

x = graphc.input("x", (64, 784))
t = graphc.input("t", (64,), dtype="int32")
h = x
for i in range(14):
    with graphc.scope(f"layer{i}"), graphc.mirror(0 if i % 4 == 3 else 1):
        h = graphc.relu(graphc.linear(h, 128))
loss = graphc.softmax_cross_entropy(graphc.linear(h, 10), t)

rng = np.random.default_rng(0)
xs = rng.standard_normal((64, 784)).astype(np.float32)
ts = rng.integers(0, 10, 64).astype(np.int32)

histories = {}
for recompute in ("none", "mirror"):
    program = graphc.compile(loss, optimizer=graphc.optim.Adam(1e-3), recompute=recompute)
    histories[recompute] = [float(program.step(x=xs, t=ts)["loss"]) for _ in range(10)]
    plan = program.plan
    print(
        f"{recompute:7} feature maps {plan.feature_map_bytes:>9,} bytes, arena "
        f"{program.arena_bytes:,} bytes, loss {histories[recompute][-1]:.4f}"
    )
print("same losses, bit for bit:", histories["none"] == histories["mirror"])
