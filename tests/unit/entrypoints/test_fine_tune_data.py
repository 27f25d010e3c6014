"""What fine-tuning makes of its data: which tokens are learnt, packing, length, and the words for lines that are wrong."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support import programs
from support.extras import needs
from support.lazy import Lazy
from support.programs import Module, Options, Train
from support.tuning import lines, turns

needs("transformers", "accelerate", "peft")
pytestmark = pytest.mark.torch
torch: Any = Lazy("torch")
transformers: Any = Lazy("transformers")

PROGRAM = "fine_tune.py"
GOOD = turns("a", "b")


def marked(**fields: Any) -> dict[str, Any]:
    """A conversation of one turn, whose answer has these fields."""
    return {"messages": [GOOD["messages"][0], {**GOOD["messages"][1], **fields}]}


@pytest.mark.parametrize(("what", "objective"), [("instructions", "sft"), ("preferences", "dpo")])
def test_the_demo_data_are_three_parts_without_a_question_in_two(
    what: str, objective: str, module: Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["demo_data.py", what, str(tmp_path)])
    module("demo_data").main()
    load = module("_instructions").load
    parts = {name: load(str(tmp_path / name), name, objective, "chat") for name in ("train", "validation", "test")}
    assert len(parts["train"]) > 100 and min(map(len, parts.values())) > 10
    every = [getattr(one, "chosen", one).messages[0]["content"] for part in parts.values() for one in part]
    assert len(set(every)) == len(every)
    assert transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").num_parameters() < 400_000


# --- tokens -----------------------------------------------------------------------------------------------------------


def learnt(module: Module, tokenizer: Any, loss_on: str, *examples: Any) -> list[str]:
    """What of each example is learnt, decoded."""
    rows = module("_turns").Encoder(tokenizer, loss_on).rows(examples)
    return [tokenizer.decode(row.tokens[row.learnt]) for row in rows]


@pytest.fixture
def tokenizer(data: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(data / "model")


def test_only_what_the_assistant_says_is_learnt(module: Module, tokenizer: Any) -> None:
    instructions = module("_instructions")
    end = tokenizer.eos_token
    messages = turns("list it", "Größe 🚂", "and len", "two\n\nlines", "bye")["messages"]
    chat = instructions.Chat(tuple(messages), 0, "x:1")
    plain = instructions.Plain("Return", " the string", "x:2")
    assert learnt(module, tokenizer, "completion", chat, plain) == [
        f"Größe 🚂{end}\ntwo\n\nlines{end}\n",
        f" the string{end}",
    ]
    assert learnt(module, tokenizer, "completion", instructions.Chat(tuple(messages), 2, "x:1")) == [f"two\n\nlines{end}\n"]
    [everything] = learnt(module, tokenizer, "all", chat)
    assert "|user|>\nlist it" in everything and everything.endswith("bye\n")


def test_a_template_that_rewrites_earlier_turns_is_refused_and_one_that_objects_is_quoted(
    module: Module, program: ModuleType, tokenizer: Any
) -> None:
    chat = module("_instructions").Chat(tuple(turns("a", "b", "c", "d")["messages"]), 0, "data.jsonl:7")
    tokenizer.chat_template = "{% for m in messages %}{{ messages | length }}: {{ m.content }}|{% endfor %}"
    with pytest.raises(program.Problem, match=r"^data.jsonl:7: .* no turn of the assistant can be told from its prompt$"):
        learnt(module, tokenizer, "completion", chat)
    tokenizer.chat_template = "{{ raise_exception('no such roles') }}"
    with pytest.raises(
        program.Problem, match=r"^data.jsonl:7: the tokenizer's chat template refuses these messages: no such"
    ):
        learnt(module, tokenizer, "completion", chat)


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        # the shapes of well-known ones: trimmed contents, an instruction in brackets, an empty thought in the last turn
        (
            "{% for m in messages %}<|{{ m.role }}|>\n\n{{ m.content | trim }}<|eot|>{% endfor %}"
            "{% if add_generation_prompt %}<|assistant|>\n\n{% endif %}",
            "two\n\nlines<|eot|>bye<|eot|>",
        ),
        (
            "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
            "{% else %} {{ m.content }} {{ eos_token }}{% endif %}{% endfor %}",
            " two\n\nlines <|endoftext|>  bye <|endoftext|>",
        ),
        (
            "{% for m in messages %}<|{{ m.role }}|>"
            "{% if loop.last and m.role == 'assistant' %}<think>\n</think>{% endif %}{{ m.content }}<|end|>{% endfor %}"
            "{% if add_generation_prompt %}<|assistant|>{% endif %}",
            "two\n\nlines<|end|><think>\n</think> bye<|end|>",
        ),
    ],
)
def test_other_templates_need_no_marks(template: str, wanted: str, module: Module, tokenizer: Any) -> None:
    tokenizer.chat_template = template
    chat = module("_instructions").Chat(tuple(turns("two", "two\n\nlines", "and", " bye")["messages"]), 0, "x:1")
    assert learnt(module, tokenizer, "completion", chat) == [wanted]


LOOP = "{% for m in messages %}"
ENDED = "<|{{ m.role }}|>\n{{ m.content }}<|end|>\n"
ASKED = "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n"
MARKED = (
    "{% if m.role == 'assistant' %}<|a|>{% generation %}{{ m.content }}<|e|>{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %}"
)
PARTS = "{{ m.role }}:{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}|"


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        (f"{LOOP}{ENDED}{ASKED}{{% else %}}{{{{ eos_token }}}}{{% endif %}}", "two<|end|>\nbye<|end|>\n<|endoftext|>"),
        (f"{LOOP}{MARKED}{ASKED}{{% else %}}{{{{ eos_token }}}}{{% endif %}}", "two<|e|>bye<|e|>"),
    ],
)
def test_an_end_of_the_text_after_the_last_turn_is_no_other_conversation(
    template: str, wanted: str, module: Module, tokenizer: Any
) -> None:
    tokenizer.chat_template = template
    chat = module("_instructions").Chat(tuple(turns("one", "two", "and", "bye")["messages"]), 0, "x:1")
    assert learnt(module, tokenizer, "completion", chat) == [wanted]


def test_a_template_without_ends_of_turns_is_said_once(
    module: Module, tokenizer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer.chat_template = f"{LOOP}<|{{{{ m.role }}}}|>\n{{{{ m.content }}}}{ASKED}{{% endif %}}"
    chat = module("_instructions").Chat(tuple(turns("one", "two", "and", "bye")["messages"]), 0, "x:1")
    assert learnt(module, tokenizer, "completion", chat, chat) == ["twobye"] * 2
    assert capsys.readouterr().err.count("the chat template writes no end of a turn") == 1


@pytest.mark.parametrize(
    ("template", "which"),
    [
        (LOOP + "{{ m.content if loop.last else 'earlier' }}|{% endfor %}", 0),
        (LOOP + "{% if m.role == 'user' %}{{ m.content }}{% endif %}|{% endfor %}", 1),
        (LOOP + "{{ m.content | upper }}|{% endfor %}", 0),
    ],
)
@pytest.mark.parametrize("loss_on", ["completion", "all"])
def test_a_template_that_writes_nothing_of_a_message_is_refused(
    template: str, which: int, loss_on: str, module: Module, program: ModuleType, tokenizer: Any
) -> None:
    tokenizer.chat_template = template
    chat = module("_instructions").Chat(tuple(turns("one", "two", "and", "bye")["messages"]), 0, "x:1")
    with pytest.raises(program.Problem, match=rf"^x:1: the tokenizer's chat template writes nothing of message {which} "):
        learnt(module, tokenizer, loss_on, chat)


@pytest.mark.parametrize(
    "template",
    [
        LOOP + "{{ m.role }}: {{ m.content.split('</think>')[-1] | trim }}|{% endfor %}",
        LOOP + "{{ m.role }}: {{ m.content | tojson }}|{% endfor %}",
        "{{ messages[1].content }}{% for m in messages %}{% if m.role != 'system' %}{{ m.content }}|{% endif %}{% endfor %}",
    ],
)
def test_a_template_may_leave_thoughts_out_and_quote_texts(template: str, module: Module, tokenizer: Any) -> None:
    tokenizer.chat_template = template
    messages = ({"role": "user", "content": "Größe?"}, {"role": "system", "content": "be kind"})
    answer = {"role": "assistant", "content": '<think>\nhm\n</think>\n\na "quoted" one'}
    assert learnt(module, tokenizer, "all", module("_instructions").Chat((*messages, answer), 0, "x:1"))


ANSWER = "{% if add_generation_prompt %}"
SHAPES = {  # of models in wide use, in words of our own: what is learnt of `talk`, or why it is refused
    "system inside the first question": (
        LOOP + "{% if m.role == 'user' %}[Q] {% if loop.index0 == 1 and messages[0].role == 'system' %}"
        "<<S>>{{ messages[0].content }}<</S>> {% endif %}{{ m.content | trim }} [/Q]"
        "{% elif m.role == 'assistant' %} {{ m.content | trim }} {{ eos_token }}{% endif %}{% endfor %}",
        " two <|endoftext|> bye <|endoftext|>",
    ),
    "system inside the last question": (
        LOOP
        + "{% if m.role == 'user' %}[Q] {% if loop.index0 >= messages | length - 2 %}{{ messages[0].content }} {% endif %}"
        "{{ m.content }} [/Q]{% elif m.role == 'assistant' %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}",
        " bye<|endoftext|>",
    ),
    "no system": (
        LOOP + "{% if m.role == 'system' %}{{ raise_exception('no system turn') }}{% endif %}{{ m.content }}{% endfor %}",
        "refuses these messages: no system turn",
    ),
    "the prompt opens a thought": (
        LOOP + "{% if m.role == 'assistant' %}<|A|>{{ m.content.split('</t>')[-1] }}<|end|>{% else %}<|U|>{{ m.content }}"
        "{% endif %}{% endfor %}" + ANSWER + "<|A|><t>\n{% endif %}",
        "two<|end|>bye<|end|>",
    ),
    "thoughts of the last answer alone": (
        LOOP
        + "<|s|>{{ m.role }}\n{% if loop.last and m.role == 'assistant' %}<t>\n\n</t>\n\n{% endif %}{{ m.content }}<|e|>\n"
        "{% endfor %}" + ANSWER + "<|s|>assistant\n{% endif %}",
        "two<|e|>\n<t>\n\n</t>\n\nbye<|e|>\n",
    ),
    "headings": (
        LOOP + "{{ {'system': '', 'user': '## Question:\n', 'assistant': '## Answer:\n'}[m.role] + m.content }}"
        "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}\n\n{% endfor %}" + ANSWER + "## Answer:\n{% endif %}",
        "two<|endoftext|>\nbye<|endoftext|>\n",
    ),
    "one line": (
        LOOP + "{{ {'system': '', 'user': 'U: ', 'assistant': 'A: '}[m.role] + m.content }}"
        "{{ eos_token if m.role == 'assistant' else ' ' }}{% endfor %}" + ANSWER + "A:{% endif %}",
        " two<|endoftext|> bye<|endoftext|>",
    ),
    "no end after the last turn but the text's": (
        LOOP
        + "<|{{ m.role }}|>\n{{ m.content }}{{ eos_token if loop.last and m.role == 'assistant' }}\n{% endfor %}"
        + ANSWER
        + "<|assistant|>\n{% endif %}",
        "twobye<|endoftext|>\n",
    ),
    "parts of a message": (
        LOOP
        + "<|{{ m.role }}|>{% for part in m.content if part.type == 'text' %}{{ part.text }}{% endfor %}<|end|>{% endfor %}",
        "<|assistant|>two<|end|><|assistant|>bye<|end|>",
    ),
    "no prompt of its own": (
        LOOP + "<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}",
        "<|assistant|>two<|end|><|assistant|>bye<|end|>",
    ),
    "nothing of the system": (
        LOOP + "{% if m.role != 'system' %}{{ m.content }}|{% endif %}{% endfor %}",
        "writes nothing of message 0",
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_of_templates_train_or_are_refused_with_words(
    shape: str, module: Module, program: ModuleType, tokenizer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer.chat_template, wanted = SHAPES[shape]
    talk = ({"role": "system", "content": "be kind"}, *turns("one", "two", "and", "bye")["messages"])
    chat = module("_instructions").Chat(talk, 0, "x:1")
    if "message" in wanted:
        with pytest.raises(program.Problem, match=wanted):
            learnt(module, tokenizer, "completion", chat)
        return
    assert learnt(module, tokenizer, "completion", chat) == [wanted]
    assert ("such turns are context, and not learnt" in capsys.readouterr().err) == ("last question" in shape)


def test_a_template_that_writes_today_writes_one_date_in_training_alone(
    module: Module, tokenizer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    template = (
        "{{ strftime_now('%d %b %Y') }}|" + LOOP + '{{ m.role }}:{{ strftime_now( "%Y" ) }}:{{ m.content }}|{% endfor %}'
    )
    tokenizer.chat_template = template
    encoder = module("_turns").Encoder(tokenizer, "completion")
    texts = [encoder.render(turns("one", "two")["messages"], False, "x:1") for _ in range(2)]
    assert texts == ["26 Jul 2024|user:2024:one|assistant:2024:two|"] * 2
    assert capsys.readouterr().err.count("the chat template writes today's date: it is taken to be 2024-07-26") == 1
    encoder.restore()
    assert tokenizer.chat_template == template


def test_a_template_that_adds_the_arguments_of_calls_as_text_is_given_text(module: Module, tokenizer: Any) -> None:
    tokenizer.chat_template = (
        LOOP + "{{ m.role }}:{{ m.content }}"
        "{% for c in m.tool_calls or [] %}{{ c.function.name + c.function.arguments }}{% endfor %}|{% endfor %}"
    )
    call = {"type": "function", "id": "7", "function": {"name": "rain", "arguments": {"city": "Malmö"}}}
    talk = ({"role": "user", "content": "one"}, {"role": "assistant", "content": "", "tool_calls": [call]})
    chat = module("_instructions").Chat(talk, 0, "x:1")
    assert learnt(module, tokenizer, "completion", chat) == ['assistant:rain{"city": "Malmö"}|']


def test_a_tokenizer_with_several_templates_takes_that_for_tools(module: Module, tokenizer: Any) -> None:
    talk = tuple(turns("one", "two")["messages"])
    tokenizer.chat_template = {"default": LOOP + "{{ m.content }}|{% endfor %}", "tool_use": TOOL_TEMPLATE}
    with_tools = module("_instructions").Chat(talk, 0, "x:1", (), ({"type": "function", "function": WEATHER},))
    assert learnt(module, tokenizer, "completion", module("_instructions").Chat(talk, 0, "x:1"), with_tools) == [
        "two|",
        "two<|end|>",
    ]


@pytest.mark.parametrize("mark", [{"weight": 0}, {"train": False}, {"training": False}, {"weight": 0.0, "train": True}])
def test_turns_that_the_data_leaves_out_are_context(
    mark: dict[str, Any], module: Module, program: ModuleType, tuning: Options, tokenizer: Any, tmp_path: Path
) -> None:
    chat = turns("a", "wrong", "again", "right")
    chat["messages"][1] |= mark
    chat["messages"][3] |= {"weight": 1, "train": True}
    channel = lines(tmp_path / "train", chat, {"prompt": chat["messages"][:1], "completion": chat["messages"][1:]})
    examples = program.load_data(tuning(train=channel, validation_fraction=0))["train"]
    end = tokenizer.eos_token
    assert learnt(module, tokenizer, "completion", *examples) == [f"right{end}\n"] * 2
    tokenizer.chat_template = f"{LOOP}{MARKED}{{% endfor %}}"
    assert learnt(module, tokenizer, "completion", *examples) == ["right<|e|>"] * 2
    with pytest.raises(program.Problem, match="loss_on is all, and the data leaves turns out"):
        learnt(module, tokenizer, "all", *examples)


def test_fields_that_are_not_read_are_named_once(
    program: ModuleType, tuning: Options, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = marked(refusal="hm", tool_calls=None, weight=1)
    channel = lines(tmp_path / "train", {**chat, "id": 7, "tools": []}, chat, {"text": "a", "label": "good"})
    program.load_data(tuning(train=channel, validation_fraction=0))
    said = "messages[].refusal (2 times), id (1 times), label (1 times)"
    assert capsys.readouterr().err == f"note: the channel train: fields that are not read: {said}\n"


def test_messages_as_other_tools_export_them(program: ModuleType, tuning: Options, tmp_path: Path) -> None:
    texts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    exported = [{"role": "developer", "content": "be kind"}, {"role": "user", "content": texts}, *GOOD["messages"]]
    nothing = [{"role": "system", "content": ""}, *GOOD["messages"], {"role": "system", "content": "now be brief"}]
    channel = lines(tmp_path / "train", {"messages": exported}, {"messages": nothing})
    one, two = program.load_data(tuning(train=channel, validation_fraction=0))["train"]
    assert [message["role"] for message in one.messages] == ["system", "user", "user", "assistant"]
    assert one.messages[1]["content"] == "ab" and two.messages[0]["role"] == "user"


@pytest.mark.parametrize("architecture", ["Bloom", "OPT"])
def test_a_model_in_which_packed_examples_see_each_other_is_refused(
    architecture: str, program: ModuleType, tuning: Options, tune: Train, tokenizer: Any, tmp_path: Path
) -> None:
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "word_embed_proj_dim": 32, "ffn_dim": 32}
    config = getattr(transformers, f"{architecture}Config")(vocab_size=len(tokenizer), eos_token_id=0, **sizes)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "other")
    tokenizer.save_pretrained(tmp_path / "other")
    with pytest.raises(
        program.Problem, match=f"in {architecture}ForCausalLM packed examples would see each other: set pack"
    ):
        tune(tuning(model=tmp_path / "other", packing=True))


def test_packed_examples_have_the_losses_that_they_have_alone(module: Module, tokenizer: Any, data: Path) -> None:
    turning, instructions = module("_turns"), module("_instructions")
    examples = instructions.load(str(data / "train"), "train", "sft", "plain")[:40]
    rows = list(turning.Encoder(tokenizer, "completion").rows(examples))
    groups = turning.pack(rows, 128)
    assert sorted(id(row) for group in groups for row in group) == sorted(map(id, rows))
    assert max(sum(map(len, group)) for group in groups) <= 128 and len(groups) < sum(map(len, rows)) / 128 * 1.2
    model = transformers.AutoModelForCausalLM.from_pretrained(data / "model").eval()
    with torch.no_grad():
        packed = model(**turning.collate(groups), use_cache=False, num_items_in_batch=torch.tensor(1)).loss.item()
        alone = model(**turning.collate(rows), num_items_in_batch=torch.tensor(1)).loss.item()
    assert packed == pytest.approx(alone, rel=1e-5)


# --- forms that people have -------------------------------------------------------------------------------------------

WEATHER = {"name": "weather", "description": "of a place", "parameters": {"type": "object", "properties": {}}}
CALL = {"name": "weather", "arguments": {"place": "Ulm"}}
TOOL_TEMPLATE = (
    "{% for t in tools or [] %}<tool>{{ t | tojson }}{% endfor %}" + LOOP + "<|{{ m.role }}|>"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def contents(examples: list[Any]) -> list[list[tuple[str, str]]]:
    return [[(message["role"], message["content"]) for message in one.messages] for one in examples]


ANSWERED = [("user", "add\n2 and 3"), ("assistant", "5")]


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ({"instruction": "add", "input": "2 and 3", "output": "5"}, ANSWERED),
        ({"instruction": "add", "context": "2 and 3", "response": "5", "category": "sums"}, ANSWERED),
        (
            {"instruction": "and?", "input": "", "output": "6", "system": "sum", "history": [["1", "2"]]},
            [("system", "sum"), ("user", "1"), ("assistant", "2"), ("user", "and?"), ("assistant", "6")],
        ),
        (
            {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}], "system": "s"},
            [("system", "s"), ("user", "a"), ("assistant", "b")],
        ),
        ({"conversations": GOOD["messages"]}, [("user", "a"), ("assistant", "b")]),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "text", "value": "a"}], "loss_weight": 0.0},
                    GOOD["messages"][1],
                ]
            },
            [("user", "a"), ("assistant", "b")],
        ),
    ],
)
def test_data_of_other_tools_is_read(
    line: dict[str, Any], wanted: list[tuple[str, str]], program: ModuleType, tuning: Options, tmp_path: Path
) -> None:
    channel = lines(tmp_path / "train", line)
    assert contents(program.load_data(tuning(train=channel, validation_fraction=0))["train"]) == [wanted]


@pytest.mark.parametrize(
    "line",
    [
        {
            "conversations": [{"from": "human", "value": "a"}],
            "chosen": {"from": "gpt", "value": "b"},
            "rejected": {"from": "gpt", "value": "c"},
        },
        {"instruction": "a", "input": "", "chosen": "b", "rejected": "c"},
        {"prompt": "a", "chosen": turns("a", "b")["messages"], "rejected": turns("a", "c")["messages"]},
        {"chosen": turns("a", "b")["messages"], "rejected": turns("a", "c")["messages"]},
        {"chosen_messages": turns("a", "b")["messages"], "rejected_messages": turns("a", "c")["messages"]},
        {
            "prompt": "a",
            "chosen": [{"role": "assistant", "content": "b"}],
            "rejected": [{"role": "assistant", "content": "c"}],
        },
    ],
)
def test_pairs_of_other_tools_are_read(line: dict[str, Any], program: ModuleType, tuning: Options, tmp_path: Path) -> None:
    [pair] = program.load_data(tuning(train=lines(tmp_path / "train", line), objective="dpo"))["train"]
    assert contents([pair.chosen, pair.rejected]) == [
        [("user", "a"), ("assistant", "b")],
        [("user", "a"), ("assistant", "c")],
    ]


@pytest.mark.parametrize(
    "answer",
    [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "function": {**CALL, "arguments": '{"place": "Ulm"}'}}],
        },
        {"role": "assistant", "function_call": CALL},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "assistant", "content": [{"type": "tool_call", "value": json.dumps(CALL)}]},
        {"from": "function_call", "value": json.dumps(CALL)},
    ],
)
@pytest.mark.parametrize("tools", [[WEATHER], [{"type": "function", "function": WEATHER}], json.dumps([WEATHER])])
def test_calls_of_tools_are_learnt(
    answer: dict[str, Any], tools: Any, module: Module, program: ModuleType, tuning: Options, tokenizer: Any, tmp_path: Path
) -> None:
    talk = [
        {"role": "user", "content": "rain?"},
        answer,
        {"role": "tool", "content": "no"},
        {"role": "assistant", "content": "It is dry."},
    ]
    channel = lines(tmp_path / "train", {"messages": talk, "tools": tools})
    examples = program.load_data(tuning(train=channel, validation_fraction=0))["train"]
    tokenizer.chat_template = TOOL_TEMPLATE
    assert learnt(module, tokenizer, "completion", *examples) == ['<call>weather {"place": "Ulm"}<|end|>It is dry.<|end|>']
    [everything] = learnt(module, tokenizer, "all", *examples)
    assert '"description": "of a place"' in everything
    tokenizer.chat_template = None
    with pytest.raises(program.Problem, match="writes nothing of the calls of message 1"):
        learnt(module, tokenizer, "completion", *examples)


def test_a_template_that_knows_no_tools_is_refused(
    module: Module, program: ModuleType, tuning: Options, tokenizer: Any, tmp_path: Path
) -> None:
    channel = lines(tmp_path / "train", {**GOOD, "tools": [WEATHER]})
    examples = program.load_data(tuning(train=channel, validation_fraction=0))["train"]
    with pytest.raises(
        program.Problem, match=r"data.jsonl:1: .* writes nothing of the tools: take a model that knows tools"
    ):
        learnt(module, tokenizer, "completion", *examples)


@pytest.mark.parametrize(
    "thought",
    [
        {"reasoning_content": "hm"},
        {"thinking": "hm"},
        {"content": [{"type": "reasoning", "value": "hm"}, {"type": "text", "value": "b"}]},
    ],
)
def test_thoughts_are_learnt_where_the_template_writes_them(
    thought: dict[str, Any], module: Module, program: ModuleType, tuning: Options, tokenizer: Any, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    examples = program.load_data(tuning(train=lines(tmp_path / "train", marked(**thought)), validation_fraction=0))["train"]
    tokenizer.chat_template = TOOL_TEMPLATE
    assert learnt(module, tokenizer, "completion", *examples) == ["<think>hm</think>b<|end|>"]
    assert capsys.readouterr().err == ""
    tokenizer.chat_template = None
    assert learnt(module, tokenizer, "completion", *examples, *examples) == [f"b{tokenizer.eos_token}\n"] * 2
    assert capsys.readouterr().err.count("the chat template leaves thoughts out: they are not learnt") == 1


def test_lists_of_json_and_parquet_are_read(
    program: ModuleType, tuning: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    channel = programs.channel(tmp_path / "train", json.dumps([GOOD, turns("c", "d")], indent=1), "list.json")
    called = {"messages": [GOOD["messages"][0], {"role": "assistant", "content": "", "tool_calls": [CALL]}]}
    parquet.write_table(pyarrow.Table.from_pylist([GOOD, called]), channel / "rows.parquet")
    examples = program.load_data(tuning(train=channel, validation_fraction=0))["train"]
    assert [one.where for one in examples] == [
        "list.json: element 1", "list.json: element 2", "rows.parquet: row 1", "rows.parquet: row 2",
    ]  # fmt: skip
    assert "tool_calls" not in examples[2].messages[1] and "tool_calls" in examples[3].messages[1]

    programs.channel(channel, "[{}, 3]", "list.json")
    with pytest.raises(program.Problem, match=r"list.json: element 1: has none of .* \(2 lines are wrong in all\)"):
        program.load_data(tuning(train=channel))
    programs.channel(channel, "[{},\n 3", "list.json")
    with pytest.raises(program.Problem, match=r"list.json is not JSON: .* at line 2, column 3$"):
        program.load_data(tuning(train=channel))
    (channel / "list.json").unlink()
    (channel / "rows.parquet").write_bytes(b"PAR1")
    with pytest.raises(program.Problem, match=r"rows.parquet cannot be read as Parquet: "):
        program.load_data(tuning(train=channel))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(program.Problem, match=r"Parquet needs pyarrow, not installed here: pip install"):
        program.load_data(tuning(train=channel))


def test_several_sets_are_mixed(program: ModuleType, tuning: Options, tmp_path: Path) -> None:
    lines(tmp_path / "train" / "code", *[turns("a", f"code {number}") for number in range(40)])
    lines(tmp_path / "train", turns("a", "other"), turns("b", "other"))

    def count(**given: object) -> tuple[int, int]:
        found = program.load_data(tuning(train=tmp_path / "train", validation_fraction=0, **given))["train"]
        code = sum(one.messages[1]["content"].startswith("code") for one in found)
        return code, len(found) - code

    assert count() == (40, 2)
    assert count(mixture="code=2,data=3") == (80, 6)
    assert 5 < count(mixture="code=0.5")[0] < 35 and count(mixture="code=0.5") == count(mixture="code=0.5")
    assert count(mixture="code=0") == (0, 2)
    for mixture, words in (
        ("chat=2", "mixture: the channel train has no folder or file chat"),
        ("code", "mixture 'code' is not a name and a number from 0 to 1000, as chat=2"),
        ("code=nan", "mixture 'code=nan' is not a name"),
        ("code=0,data=0", "mixture: it leaves nothing to train on"),
    ):
        with pytest.raises(program.Problem, match=re.escape(words)):
            count(mixture=mixture)


# --- lines that are wrong ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ("{", r"data.jsonl:2: is not JSON: .. at column 2"),
        ("[1, 2]", "data.jsonl:2: is a list, not an object like {...}"),
        ("\\", "data.jsonl:2: is not JSON"),
        ("[" * 5000, "data.jsonl:2: is n"),
        ({"mesages": []}, "data.jsonl:2: has none of messages, prompt and completion, instruction and output, or text (its"),
        ({"instruction": "a", "input": "b"}, "data.jsonl:2: has no output (its fields: instruction)"),
        ({"instruction": "a", "output": "b", "history": ["c"]}, "history is not a list of pairs"),
        ({}, "(its fields: none)"),
        ({"prompt": "a"}, "data.jsonl:2: has no completion (its fields: prompt)"),
        (
            {"prompt": "a", "chosen": "b", "rejected": "c"},
            "has no completion .. ; its chosen and rejected are for objective dpo",
        ),
        ({"prompt": "a", "completion": ""}, "data.jsonl:2: completion is empty"),
        ({"prompt": 3, "completion": "b"}, "data.jsonl:2: prompt is a number, not a string"),
        ({"prompt": [], "completion": "b"}, "prompt is a list, completion is a string: both must be"),
        ({"text": " \n"}, "data.jsonl:2: text is empty"),
        ({"text": None}, "data.jsonl:2: text is null, not a string"),
        ({"text": "\ud800"}, "data.jsonl:2: text has half a character"),
        ({"messages": []}, "data.jsonl:2: messages is empty"),
        ({"messages": "hi"}, "data.jsonl:2: messages is a string, not a list of messages"),
        ({"messages": [{"speaker": "human", "value": "a"}]}, "messages[0] has no role (its fields: speaker, value)"),
        ({"messages": [{"from": "human", "text": "a"}]}, "messages[0] has no content (its fields: from, text)"),
        ({"messages": [{"role": "humans", "content": "a"}]}, "messages[0].role is 'humans', not one of .. ; write human"),
        ({"messages": [{"role": ["x"], "content": "a"}]}, r"messages[0].role is ['x'], not one of"),
        ({"messages": [{"role": "system", "content": ""}]}, "data.jsonl:2: messages is empty"),
        # marks and fields without which the rest means something else
        ({**GOOD, "tools": [{"type": "function"}]}, "data.jsonl:2: tools[0] is not an object with a name"),
        ({**GOOD, "tools": "{"}, "data.jsonl:2: tools is not JSON: '{'"),
        ({"text": "a", "tools": [{"name": "f"}]}, "tools: tools and their calls are of messages: write the line as"),
        ({**GOOD, "images": ["a.png"]}, "data.jsonl:2: images: pictures, sounds and videos are not served"),
        ({**GOOD, "weight": 0.5}, "data.jsonl:2: weight is 0.5: lines have no weights here"),
        ({**GOOD, "label": False}, "data.jsonl:2: label is False, as KTO has it: set objective to kto, or keep the"),
        ({"prompt": "a", "completion": "b", "label": True}, "label is True, as KTO has it"),
        ({"prompt": "a", "completion": "b", "label": 0}, "label is 0, as KTO has it"),
        ({"prompt": "a", "completion": "b", "system": "be kind"}, "system: write it as the first message, with the role"),
        (marked(tool_calls=[{"id": 1}]), "messages[1]: a call is not an object with a name: {"),
        (
            marked(tool_calls=[{"name": "f", "arguments": "[1]"}]),
            "messages[1]: the arguments of f are a list, not an object",
        ),
        ({"messages": [{"role": "user", "content": "a", "thinking": "b"}]}, "messages[0]: calls of tools and thoughts are"),
        (marked(content=[{"type": "image_url", "image_url": "x"}]), "messages[1].content[0] is of type 'image_url': pict"),
        (marked(weight=0.5), "messages[1].weight is 0.5, neither 0 nor 1: a message is learnt or it is not"),
        (marked(weight="0"), "messages[1].weight is '0', neither 0 nor 1"),
        (marked(train_detail=[{"begin_offset": 0}]), "messages[1].train_detail: parts of a message cannot be left out"),
        (marked(weight=0), "messages: no assistant's turn is to be learnt, by their weight or train: leave the line out"),
        (marked(content=None), "messages[1].content is null, not a string"),
        ({"messages": [{"role": "user", "content": "a"}]}, "data.jsonl:2: messages: there is no assistant's turn"),
        (
            {"prompt": [{"role": "user", "content": "a"}], "completion": [{"role": "user", "content": "b"}]},
            "completion[0].role is 'user'",
        ),
        ({"messages": [{"role": "user", "content": ""}]}, "data.jsonl:2: messages[0].content is empty"),
    ],
)
def test_a_bad_line_is_named(bad: object, words: str, program: ModuleType, tuning: Options, tmp_path: Path) -> None:
    channel = lines(tmp_path / "train", GOOD, bad, bad)
    with pytest.raises(program.Problem) as raised:
        program.load_data(tuning(train=channel))
    assert all(part in str(raised.value) for part in words.split(" .. "))
    assert str(raised.value).endswith("(2 lines are wrong in all)") and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"prompt": "a", "chosen": "b"}, "data.jsonl:1: has no rejected; dpo needs prompt, chosen and rejected (its"),
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, "data.jsonl:1: chosen and rejected are the same"),
        ({"prompt": "a", "chosen": "b", "rejected": []}, ":1: prompt is a string, rejected is a list: both must be"),
        (GOOD, "data.jsonl:1: has no prompt; dpo needs"),
    ],
)
def test_a_bad_pair_is_named(bad: object, words: str, program: ModuleType, tuning: Options, tmp_path: Path) -> None:
    with pytest.raises(program.Problem, match=re.escape(words)):
        program.load_data(tuning(train=lines(tmp_path / "train", bad), objective="dpo"))


def test_bytes_that_are_no_utf_8_and_folders_without_data_are_named(
    program: ModuleType, tuning: Options, tmp_path: Path
) -> None:
    channel = lines(tmp_path / "train", GOOD)
    (channel / "latin.jsonl").write_bytes(b'{"text": "caf\xe9"}\n')
    with pytest.raises(program.Problem, match=r"latin.jsonl:1: is not UTF-8 \(byte 14 of the line\)$"):
        program.load_data(tuning(train=channel))
    (channel / "latin.jsonl").write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode() + b"\r\n\r\n")
    assert len(program.load_data(tuning(train=channel, validation_fraction=0))["train"]) == 2
    for folder, words in (("/nowhere", "is not a folder"), (programs.ENTRYPOINTS, "holds no file of JSON lines")):
        with pytest.raises(program.Problem, match=words):
            program.load_data(tuning(train=folder))
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/x.jsonl").write_text("\n")
    with pytest.raises(program.Problem, match=r"its files are empty"):
        program.load_data(tuning(train=tmp_path / "empty"))


OPINION = {"prompt": "a", "completion": "b", "label": True}


@pytest.mark.parametrize(
    ("objective", "line", "words"),
    [
        ("kto", {**OPINION, "label": None}, "data.jsonl:2: label is None, neither true nor false"),
        ("kto", {**OPINION, "label": "yes"}, "data.jsonl:2: label is 'yes', neither true nor false"),
        ("kto", {**OPINION, "label": 0.5}, "data.jsonl:2: label is 0.5, neither true nor false"),
        ("kto", {"prompt": "a", "completion": "b"}, "data.jsonl:2: has no label; kto needs messages, prompt and completion"),
        ("kto", {"text": "a", "label": True}, "data.jsonl:2: text has no prompt; kto judges an answer to one"),
        (
            "kto",
            {"messages": [*turns("a", "b")["messages"], {"role": "user", "content": "c"}], "label": True},
            "data.jsonl:2: messages end with the turn of user; kto judges the assistant's last one",
        ),
        (
            "kto",
            {"prompt": "a", "chosen": "b", "rejected": "c", "label": True},
            "has no completion .. objective dpo, orpo",
        ),
        ("orpo", {"prompt": "a", "chosen": "b"}, "data.jsonl:2: has no rejected; orpo needs prompt, chosen and rejected"),
        ("reward", {"prompt": "a", "chosen": "b", "rejected": "b"}, "data.jsonl:2: chosen and rejected are the same"),
        ("grpo", {"question": "a"}, "data.jsonl:2: has neither prompt nor messages (its fields: question)"),
        ("grpo", {"prompt": ""}, "data.jsonl:2: prompt is empty"),
        (
            "grpo",
            {"prompt": "a", "completion": "b"},
            "completion: reward functions are given something else",
        ),
        ("grpo", {"prompt": "a", "images": ["a.png"]}, "data.jsonl:2: images: pictures, sounds and videos are not served"),
        ("grpo", {"messages": [{"role": "assistant", "content": "b"}]}, "messages: there is nothing to answer"),
    ],
)
def test_a_bad_opinion_pair_or_prompt_is_named(
    objective: str, line: object, words: str, program: ModuleType, tuning: Options, tmp_path: Path
) -> None:
    good = {"kto": OPINION, "grpo": {"prompt": "a"}}.get(objective, {"prompt": "a", "chosen": "b", "rejected": "c"})
    hp = tuning(train=lines(tmp_path / "train", good, line, line), objective=objective, **judged(tmp_path, objective))
    with pytest.raises(program.Problem) as raised:
        program.load_data(hp)
    assert all(part in str(raised.value) for part in words.split(" .. "))


def judged(folder: Path, objective: str, code: str = "def short(completions): ...") -> dict[str, object]:
    """Hyperparameters that grpo wants."""
    (folder / "rewards.py").write_text(code)
    return {"rewards": folder / "rewards.py", "generations": 2} if objective == "grpo" else {}


def test_an_opinion_is_of_the_last_turn_and_may_be_called_otherwise(
    program: ModuleType, tuning: Options, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [{**turns("a", "b", "c", "d"), "kto_tag": False}, {"instruction": "a", "output": "b", "label": 1}]
    chat, plain = program.load_data(tuning(train=lines(tmp_path / "train", *given), objective="kto", validation_fraction=0))[
        "train"
    ]
    assert (chat.first, chat.good, plain.good) == (3, False, True)
    assert "bad, good" in capsys.readouterr().out


def test_a_label_beside_kto_tag_is_a_field_of_its_own(
    program: ModuleType, tuning: Options, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = {"prompt": "a", "completion": "b"}
    given = [{**line, "label": "sports", "kto_tag": True}, {**line, "label": 0, "kto_tag": False}]
    hp = tuning(train=lines(tmp_path / "train", *given), objective="kto", validation_fraction=0)
    assert [one.good for one in program.load_data(hp)["train"]] == [True, False]
    assert "fields that are not read: label (1 times)" in capsys.readouterr().err

    lines(tmp_path / "train", given[0], {**line, "label": True, "kto_tag": False})
    with pytest.raises(program.Problem, match=r"data.jsonl:2: label and kto_tag differ: leave one of them out"):
        program.load_data(hp)


def test_opinions_of_one_kind_are_said(
    program: ModuleType, tuning: Options, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program.load_data(tuning(train=lines(tmp_path / "train", OPINION, OPINION), objective="kto"))
    assert "the channel train: every label is true: kto learns more" in capsys.readouterr().err


def test_what_a_prompt_has_beside_it_is_for_the_rewards(program: ModuleType, tuning: Options, tmp_path: Path) -> None:
    given = [{"prompt": "a", "answer": 7}, {**turns("a", "b"), "tests": ["x"]}]
    hp = tuning(train=lines(tmp_path / "train", *given), objective="grpo", validation_fraction=0, **judged(tmp_path, "grpo"))
    plain, chat = program.load_data(hp)["train"]
    assert (plain.given, plain.columns) == ("a", {"answer": 7})
    assert (chat.given, chat.columns) == ([{"role": "user", "content": "a"}], {"tests": ["x"]})


@pytest.mark.parametrize(
    ("changed", "code", "words"),
    [
        ({"rewards": ""}, "", "grpo has nothing to judge answers by: add a channel rewards"),
        ({"rewards": "/nowhere"}, "", "rewards: /nowhere is not a file, and has none, of Python: give one"),
        ({}, "def short(completions:\n", "rewards.py cannot be read as Python: .*line 1"),
        ({}, "def short(texts): ...", "has no function with a parameter completions"),
        ({"batch_size": 3}, "def short(completions): ...", "batch_size is 3, not a multiple of generations \\(2\\)$"),
        ({"gradient_accumulation_steps": 4}, "def short(completions): ...", r"generations \(2\) times 4 parts$"),
        ({"generations": 1}, "def short(completions): ...", "generations"),
        ({"temperature": 0}, "async def short(completions): ...", "temperature is 0, with which all answers .* the same"),
        ({"sharding": "shard"}, "def short(completions): ...", "sharding is shard, but grpo answers with the whole model"),
    ],
)
def test_a_job_of_rewards_that_cannot_be_is_said_before_it_starts(
    changed: dict[str, object], code: str, words: str, program: ModuleType, tuning: Options, tmp_path: Path
) -> None:
    with pytest.raises(program.Problem, match=words):
        tuning(**{"objective": "grpo", **judged(tmp_path, "grpo", code), **changed})


@pytest.mark.parametrize(("parameters", "absent"), [
    ("completions, answer", ""), ("completions, prompts, trainer_state, *, log_metric, level=1, **_", ""),
    ("completions, answer, tests=None", ""), ("completions, solution", "solution"), ("completions, *, answers", "answers"),
])  # fmt: skip
def test_a_field_that_rewards_need_and_the_data_has_not_is_named(
    parameters: str, absent: str, program: ModuleType, tuning: Options, tmp_path: Path
) -> None:
    judges = judged(tmp_path, "grpo", f"async def right({parameters}): ...")
    hp = tuning(train=lines(tmp_path / "train", {"prompt": "a", "answer": 7, "id": 1}), objective="grpo", **judges)
    if not absent:
        assert program.load_data(hp)["train"]
        return
    needs = rf"^rewards: right in rewards.py needs {absent}, and the channel train has no such field, but answer, id$"
    with pytest.raises(program.Problem, match=needs):
        program.load_data(hp)
