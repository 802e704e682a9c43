"""A language model fine-tuned by the Trainer of transformers, in a budget of 16 MiB.

The three marked lines are those that hold the budget; the comments say what a plain script has.
"""

from pydoc_data.topics import topics

import torch
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

from graphc.torch.integrations import PlannedTrainer  # 1: from transformers import Trainer

STEPS, BATCH, LENGTH = 20, 8, 128


def examples() -> list[dict[str, torch.Tensor]]:
    """Windows of Python's language reference, as bytes."""
    text = "\n".join(topics[name] for name in sorted(topics)).encode()
    windows = torch.tensor(list(text[: STEPS * BATCH * LENGTH])).view(-1, LENGTH)
    return [{"input_ids": window, "labels": window} for window in windows]


def main() -> None:
    """Train and save the model."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    args = TrainingArguments(
        "finetuned",
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        learning_rate=1e-3,
        logging_steps=STEPS,
        report_to=[],
        use_cpu=True,
    )
    trainer = PlannedTrainer(  # 2: trainer = Trainer(
        model=LlamaForCausalLM(config),
        args=args,
        train_dataset=examples(),
        budget="16MiB",  # 3: no such line
    )
    trainer.train()
    trainer.save_model("finetuned")


if __name__ == "__main__":
    main()
