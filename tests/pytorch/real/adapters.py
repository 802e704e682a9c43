"""Models of transformers with adapters of peft."""

from __future__ import annotations

from typing import Any

from pytorch.real import language, perception
from pytorch.real.cases import Case, Entry

BASES = {**language.CLASSES, **perception.CLASSES}


def adapted(kind: str, name: str, **config: Any) -> Entry:
    """Return a class with adapters; `kind` is the name of a configuration of peft."""

    def make() -> Case:
        import peft

        base = BASES[name]()
        settings = getattr(peft, f"{kind}Config")(**config)
        module = peft.get_peft_model(base.module, settings).train()
        return Case(module, base.args, base.kwargs, base.loss_fn)

    return f"{kind} of {name}", make


CLASSES = dict(
    [
        adapted("Lora", "LlamaForCausalLM", r=4, lora_dropout=0.05, task_type="CAUSAL_LM"),
        adapted("Lora", "T5ForConditionalGeneration", r=4, task_type="SEQ_2_SEQ_LM"),
        adapted(
            "Lora", "ViTForImageClassification", r=4, target_modules=["q_proj", "v_proj"],
            modules_to_save=["classifier"],
        ),
        adapted("IA3", "BertForSequenceClassification", task_type="SEQ_CLS"),
        adapted("PromptTuning", "GPT2LMHeadModel", num_virtual_tokens=4, task_type="CAUSAL_LM"),
    ]
)  # fmt: skip
