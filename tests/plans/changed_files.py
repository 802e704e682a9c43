"""A network whose plan has all that a file holds, and files of it that are changed."""

import json

import graphc as g
from graphc.plans.json_form import checksum


def network():
    """Views with strides, a copied node, dropout, a default, something kept, two outputs."""
    x, t = g.input("x", (4, 16)), g.input("t", (4,), "int32")
    h = x
    for i in range(3):
        with g.scope(f"layer{i}"), g.mirror(1):
            h = g.tanh(g.linear(h, 16))
    left, right = g.split(g.dropout(g.keep(h), 0.25), 2, axis=1)
    logits = g.linear(g.add(g.transpose(g.transpose(left)[1:7]), right[:, 1:7]), 6, name="head")
    return g.softmax_cross_entropy(logits, t), {"logits": logits}


def planned(recompute="mirror", **options):
    loss, outputs = network()
    optimizer = g.optim.Adam(g.optim.Schedule(0.01, steps=9))
    return g.plan(loss, outputs=outputs, optimizer=optimizer, recompute=recompute, **options)


class Text(str):
    """Long; hypothesis prints it with every example that fails."""

    __slots__ = ()

    def __repr__(self):
        return "text of the plan"


def sealed(content):
    """The content as a text, with the checksum that belongs to it."""
    return json.dumps({**content, "sha256": checksum(content)})


def tampered(text, change):
    content = json.loads(text)
    change(content)
    return sealed(content)


def place_of(content, name):
    return content["buffers"][content["placements"][name]["buffer"]]
