"""Recipes for trainers: 20 steps under a budget, saved, and loaded into the plain model."""

import copy
import inspect
import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.peers,
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # of these packages about themselves
]

from accelerate import Accelerator  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402
from transformers import (  # noqa: E402
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

import graphc  # noqa: E402
from graphc.errors import BudgetError, OptionError, TorchError  # noqa: E402
from graphc.torch.integrations import PlannedTrainer  # noqa: E402

STEPS, ROWS, LENGTH, WORDS = 20, 4, 32, 128
CONFIG = LlamaConfig(
    vocab_size=WORDS,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
)
TEXT = torch.randint(WORDS, (STEPS * ROWS, LENGTH), generator=torch.Generator().manual_seed(1))
EXAMPLES = [{"input_ids": row, "labels": row} for row in TEXT]
BATCHES = list(DataLoader(EXAMPLES, ROWS))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return LlamaForCausalLM(CONFIG)


def optimizer_of(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def loss_of(model):
    """The loss of a model for the first batch, in evaluation."""
    with torch.no_grad():
        return model.eval()(**BATCHES[0]).loss.item()


def plain_with(model):
    """A new model with these weights: accelerate puts autocast into the forward of a model."""
    plain = LlamaForCausalLM(CONFIG)
    plain.load_state_dict(model.state_dict())
    return plain


def trained_plainly(model):
    """The loss after training a copy without a plan."""
    plain = copy.deepcopy(model)
    optimizer = optimizer_of(plain)
    for batch in BATCHES:
        plain(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss_of(plain)


def planned(model, **options):
    step = graphc.torch.plan(model, (), kwargs=BATCHES[0], max_extra_time=0.5, **options)
    assert step.report.peak_bytes < step.report.plain_bytes
    return step


def reloaded(folder):
    return LlamaForCausalLM.from_pretrained(folder)


def test_a_plain_loop(model, tmp_path):
    wanted = trained_plainly(model)
    optimizer = optimizer_of(model)
    step = planned(model, reserve=optimizer, return_outputs=False)
    for batch in BATCHES:
        step(**batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert len(step.plans) == 1
    step.save_pretrained(tmp_path)
    assert loss_of(reloaded(tmp_path)) == loss_of(model) == pytest.approx(wanted, abs=1e-5)


def test_settings_of_a_head_are_settled():
    """Two steps have one plan; transformers sets the type in its own first step."""
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        num_labels=3,
    )
    kwargs = {"input_ids": BATCHES[0]["input_ids"], "labels": torch.tensor([0, 1, 2, 0])}
    wanted = BertForSequenceClassification(config)
    wanted(**kwargs)
    config = copy.deepcopy(config)
    config.problem_type = None
    step = graphc.torch.plan(BertForSequenceClassification(config), (), "knee", kwargs=kwargs)
    assert step.config.problem_type == wanted.config.problem_type == "single_label_classification"
    assert "config.problem_type: set to 'single_label_classification'" in str(step.report)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        step(**kwargs).loss.backward()
        step(**kwargs).loss.backward()
    assert len(step.plans) == 1


@pytest.mark.filterwarnings("ignore:Dynamo detected a call:UserWarning")
@pytest.mark.parametrize("name", ["Wav2Vec2", "WavLM"])
def test_encoders_of_audio_that_train_ask_for_no_gradient_of_their_input(name):
    """Gradients of parameters are those of torch; nothing reads the gradient of the input."""
    sizes = {
        "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 12,
        "intermediate_size": 64, "conv_dim": (16, 16), "conv_kernel": (10, 3),
        "conv_stride": (5, 2), "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 16,
        "num_conv_pos_embedding_groups": 4, "layerdrop": 0.0, "apply_spec_augment": False,
        "hidden_dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0,
        "feat_proj_dropout": 0.0, "final_dropout": 0.0,
    }  # fmt: skip
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCTC")(
        getattr(transformers, f"{name}Config")(**sizes)
    ).train()
    kwargs = {"input_values": torch.randn(2, 400), "labels": torch.randint(1, 12, (2, 5))}
    model(**kwargs).loss.backward()
    wanted = {each: p.grad.clone() for each, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    step = graphc.torch.plan(model, (), "knee", kwargs=kwargs, return_outputs=False)
    assert "feature_extractor._requires_grad: set to False" in str(step.report)
    step(**kwargs).backward()
    for each, p in model.named_parameters():
        torch.testing.assert_close(p.grad, wanted.get(each))


def arguments(folder, **options):
    return TrainingArguments(
        folder,
        max_steps=STEPS,
        per_device_train_batch_size=ROWS,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        save_steps=STEPS,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **options,
    )


@pytest.mark.parametrize(
    "options",
    [{}, {"bf16": True}, {"gradient_accumulation_steps": 2}, {"label_smoothing_factor": 0.1}],
)
def test_a_planned_trainer(model, tmp_path, options):
    """Its steps are those of a plain Trainer, and its checkpoint loads into the plain model."""
    plain = copy.deepcopy(model)
    Trainer(plain, arguments(tmp_path / "plain", **options), train_dataset=EXAMPLES).train()
    own = arguments(tmp_path / "planned", **options)
    trainer = PlannedTrainer(model, own, train_dataset=EXAMPLES, max_extra_time=0.5)
    trainer.train()
    step = trainer.planned_step
    assert len(step.plans) == 1
    assert step.report.held.reserve >= 2 * step.report.held.parameters
    assert bool(step.report.held.gradients) == ("gradient_accumulation_steps" in options)
    assert step.report.peak_bytes < step.report.plain_bytes
    found = loss_of(reloaded(tmp_path / "planned" / f"checkpoint-{STEPS}"))
    assert found == loss_of(plain_with(model))
    wanted = loss_of(plain_with(plain))
    assert found == pytest.approx(wanted, abs=5e-3 if "bf16" in options else 1e-5)
    metrics = trainer.evaluate(EXAMPLES[:ROWS])
    assert metrics["eval_loss"] > 0
    assert len(step.plans) == 1


def test_a_planned_trainer_of_several_lengths(model, tmp_path):
    """Batches of different lengths run sizes that the first step has planned, with equal losses."""
    data = [
        {name: each[: each.numel() - 3 * (place // ROWS % 4)] for name, each in example.items()}
        for place, example in enumerate(EXAMPLES)
    ]
    longest = max(each["input_ids"].numel() for each in data)
    plain = copy.deepcopy(model)

    class InOrder:
        def _get_train_sampler(self, *_):
            return None

    class Ordered(InOrder, Trainer):
        pass

    class PlannedInOrder(InOrder, PlannedTrainer):
        pass

    Ordered(plain, arguments(tmp_path / "plain"), train_dataset=data).train()
    trainer = PlannedInOrder(
        model, arguments(tmp_path / "planned"), train_dataset=data, max_extra_time=0.5,
        sizes={"input_ids": {1: (longest - 4, longest)}},
    )  # fmt: skip
    trainer.train()
    step = trainer.planned_step
    assert len(step.report.sizes) == len(step.plans) == 2
    assert loss_of(plain_with(model)) == pytest.approx(loss_of(plain_with(plain)), abs=1e-5)


def test_a_planned_trainer_without_room(model, tmp_path):
    trainer = PlannedTrainer(model, arguments(tmp_path), train_dataset=EXAMPLES, budget="1KiB")
    with pytest.raises(BudgetError, match="no plan within"):
        trainer.train()


def test_wrong_options_of_a_planned_trainer(model, tmp_path):
    with pytest.raises(OptionError, match="not both"):
        PlannedTrainer(model, arguments(tmp_path), budget="1MiB", max_extra_time=0.1)


def test_a_planned_trainer_refuses_losses_of_padded_outputs(model, tmp_path):
    own = arguments(tmp_path, label_smoothing_factor=0.1)
    with pytest.raises(OptionError, match="labels that are not padded; use the loss of the model"):
        PlannedTrainer(model, own, sizes={"input_ids": {1: (8, 16)}}, pad={"labels": -100})
    counts = {"input_ids": {1: {8: 1, 16: 2}}}
    made = PlannedTrainer(model, arguments(tmp_path), dynamic=counts, max_sizes=1)
    assert made.goal_options.max_sizes == 1
    assert {"model", "budget", "max_sizes"} <= set(inspect.signature(PlannedTrainer).parameters)


def test_a_planned_trainer_refuses_a_wrapped_model(model, tmp_path):
    trainer = PlannedTrainer(model, arguments(tmp_path), train_dataset=EXAMPLES)
    with pytest.raises(TorchError, match="has wrapped it in DataParallel; pass Trainer"):
        trainer.compute_loss(torch.nn.DataParallel(model), BATCHES[0])


def test_a_trainer_of_a_step(model, tmp_path):
    plain = copy.deepcopy(model)
    data = [{**each, "unused": 1} for each in EXAMPLES]
    Trainer(plain, arguments(tmp_path / "plain"), train_dataset=data).train()
    step = planned(model)
    Trainer(step, arguments(tmp_path / "planned"), train_dataset=data).train()
    found = reloaded(tmp_path / "planned" / f"checkpoint-{STEPS}")
    assert loss_of(found) == loss_of(model) == pytest.approx(loss_of(plain), abs=1e-5)


def test_accelerate(model, tmp_path):
    wanted = trained_plainly(model)
    accelerator, optimizer = Accelerator(cpu=True), optimizer_of(model)
    step = planned(model, reserve=optimizer)
    step, optimizer, loader = accelerator.prepare(step, optimizer, DataLoader(EXAMPLES, ROWS))
    for batch in loader:
        accelerator.backward(step(**batch).loss)
        optimizer.step()
        optimizer.zero_grad()
    assert len(step.plans) == 1
    accelerator.unwrap_model(step).save_pretrained(tmp_path)
    assert loss_of(reloaded(tmp_path)) == loss_of(model) == pytest.approx(wanted, abs=1e-5)
    accelerator.save_state(tmp_path / "state")
    saved = loss_of(model)
    with torch.no_grad():
        model.lm_head.weight.zero_()
    accelerator.load_state(tmp_path / "state")
    assert loss_of(model) == saved


def test_reserve_of_a_prepared_optimizer(model):
    optimizer = optimizer_of(model)
    prepared = Accelerator(cpu=True).prepare(optimizer)
    reserved = [
        graphc.torch.plan(model, (), "knee", kwargs=BATCHES[0], reserve=each).report.held.reserve
        for each in (optimizer, prepared)
    ]
    assert reserved[0] == reserved[1] > 0


def test_lightning(model, tmp_path):
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")

    class Training(lightning.LightningModule):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def training_step(self, batch, _):
            return self.model(**batch).loss

        def configure_optimizers(self):
            return optimizer_of(self.model)

    wanted = trained_plainly(model)
    training = Training(planned(model, reserve=optimizer_of(model)))
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        default_root_dir=tmp_path,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(training, DataLoader(EXAMPLES, ROWS))
    assert len(training.model.plans) == 1
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    state = torch.load(tmp_path / "last.ckpt", weights_only=False)["state_dict"]
    assert list(state) == [f"model.{name}" for name in model.state_dict()]
    plain = Training(LlamaForCausalLM(CONFIG))
    plain.load_state_dict(state)
    assert loss_of(plain.model) == loss_of(model) == pytest.approx(wanted, abs=1e-5)


def test_lora(model, tmp_path):
    peft = pytest.importorskip("peft", reason="peft is not installed")
    base = copy.deepcopy(model)
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj", "v_proj"]))
    wanted = trained_plainly(adapted)
    before = loss_of(adapted.train())
    optimizer = optimizer_of(adapted)
    adapted.train()
    step = planned(adapted, reserve=optimizer)
    for batch in BATCHES:
        step(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert len(step.plans) == 1
    step.save_pretrained(tmp_path)
    found = peft.PeftModel.from_pretrained(base, tmp_path)
    assert loss_of(found) == loss_of(adapted) == pytest.approx(wanted, abs=1e-5)
    assert loss_of(found) != before
    assert step.report.held.parameters == sum(each.nbytes for each in adapted.parameters())
