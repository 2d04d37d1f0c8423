from __future__ import annotations

from offload_runtime.card_checks.commands import CommandMention, commands_in, fenced_blocks

TEXT = """\
Run `offload plan`, then:

```console
$ offload validate policy.yaml   # checks it
policy.yaml: Policy, ok
$ OFFLOAD_DEBUG=1 offload apply policy.yaml \\
    --model builtin:llama-tiny | tee log
offload codes > codes.txt
```

```python
offload ("not a command")
```

   ```bash
   offload test
   ```
See `offload explain POLICY
--model MODEL`, not `pip install offload`.
"""


def test_commands_are_found_in_blocks_and_backticks_with_their_lines() -> None:
    assert commands_in(TEXT) == (
        CommandMention("offload plan", 1, is_whole=False),
        CommandMention("offload validate policy.yaml", 4, is_whole=True),
        CommandMention("offload apply policy.yaml --model builtin:llama-tiny", 6, is_whole=True),
        CommandMention("offload codes", 8, is_whole=True),
        CommandMention("offload test", 16, is_whole=True),
        CommandMention("offload explain POLICY --model MODEL", 18, is_whole=False),
    )


def test_blocks_have_a_language_and_a_line() -> None:
    assert [(language, line) for language, _, line in fenced_blocks(TEXT)] == [
        ("console", 4),
        ("python", 12),
        ("bash", 16),
    ]
