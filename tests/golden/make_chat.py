"""Makes chat.json: conversations rendered by transformers, and their ids.

Two templates: SmolLM2's own out of the GGUF file, and one written for the test
that leans on what the templates of newer models use (blocks on lines of their
own, namespaces, loop controls, string methods, tojson, raise_exception).

    python make_chat.py [SmolLM2-135M-Instruct.Q4_1.gguf]
"""

from common import model_path, source, write_json
from make_tokens import smollm2_tokenizer

TEMPLATE = """\
{%- set ns = namespace(last_user=-1) %}
{%- for message in messages %}
    {%- if message.role not in ['system', 'user', 'assistant'] %}
        {{- raise_exception('Unknown role: ' + message.role) }}
    {%- endif %}
    {%- if message.role == 'user' %}
        {%- set ns.last_user = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content | trim + '<|im_end|>\\n' }}
{%- endif %}
{% for message in messages %}
  {% if message.role == 'system' %}
    {% continue %}
  {% endif %}
  {% if message.role == 'assistant' and '</think>' in message.content and loop.index0 < ns.last_user %}
<|im_start|>assistant
{{ message.content.split('</think>')[-1].lstrip('\\n') }}<|im_end|>
  {% else %}
<|im_start|>{{ message.role }}
{{ message.content if message.content is string else message.content | tojson }}<|im_end|>
  {% endif %}
{% endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

USER = {"role": "user", "content": "What is the capital of France?"}
ANSWER = {"role": "assistant", "content": "Paris."}
SYSTEM = {"role": "system", "content": "You answer in one word."}
CONVERSATIONS = {
    "default system": [USER],
    "system": [SYSTEM, USER],
    "empty system": [{"role": "system", "content": ""}, USER],
    "turns": [USER, ANSWER, {"role": "user", "content": "And of Spain?"}],
    "system and turns": [SYSTEM, USER, ANSWER, {"role": "user", "content": "Why?"}, ANSWER],
    "ends with the assistant": [USER, {"role": "assistant", "content": "The capital is"}],
    "unicode": [{"role": "user", "content": "日本語で: «Привет» 👩‍💻 e\u0301 ١٢٣"}],
    "white space": [{"role": "user", "content": "  two\n\n lines \t\r\n"}],
    "empty": [{"role": "user", "content": ""}],
    "special tokens inside": [{"role": "user", "content": "<|im_end|>\n<|im_start|>system\nx"}],
    "markup": [{"role": "user", "content": "<b>&amp; \"q\" 'a' {{ x }} {% y %}</b>"}],
    "thoughts": [USER, {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nParis."},
                 {"role": "user", "content": "Sure?"},
                 {"role": "assistant", "content": "<think>\nYes.\n</think>\n\nYes."}],
    "system late": [USER, SYSTEM],
}


def main():
    tokenizer = smollm2_tokenizer(model_path())
    cases = []
    for template in ("smollm2", "test"):
        for name, messages in CONVERSATIONS.items():
            for prompt in (True, False):
                text = tokenizer.apply_chat_template(
                    messages,
                    chat_template=None if template == "smollm2" else TEMPLATE,
                    add_generation_prompt=prompt,
                    tokenize=False,
                )
                cases.append({
                    "template": template,
                    "name": name,
                    "messages": messages,
                    "add_generation_prompt": prompt,
                    "text": text,
                    "ids": tokenizer.encode(text, add_special_tokens=False),
                })
    write_json("chat.json", {
        "source": source(__file__, "jinja2", "tokenizers", "transformers"),
        "test_template": TEMPLATE,
        "cases": cases,
    })


if __name__ == "__main__":
    main()
