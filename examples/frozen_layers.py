"""What freezing saves: a frozen linear layer keeps no activation, no gradient and no moments."""

import graphc


def network(frozen: int) -> graphc.Value:
    """Twenty linear layers, the first `frozen` of the inner ones fixed."""
    h: graphc.Value = graphc.linear(graphc.input("x", (512, 256)), 256, name="first")
    for i in range(18):
        h = graphc.linear(h, 256, trainable=i >= frozen, name=f"inner{i}")
    return graphc.mean(graphc.linear(h, 10, name="last"))


for frozen in (0, 9, 18):
    plan = graphc.plan(network(frozen), optimizer=graphc.optim.Adam())
    print(
        f"{frozen:2} frozen: arena {plan.arena_bytes:>10,} bytes, of it state "
        f"{plan.state_bytes:>9,}, feature maps {plan.feature_map_bytes:>9,}"
    )
