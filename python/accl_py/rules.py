"""Rules files: the table from (collective, bytes, ranks, nodes) to (algorithm, protocol, channels,
chunk).

`Rules.load(path)` and `Rules.parse(text, name)` are strict: RulesError has file, line, value and
the accepted values. docs/rules.md has the grammar.
"""

from accl_py._core import Rule, Rules, algorithm_words, protocol_words

__all__ = ["Rule", "Rules", "algorithm_words", "protocol_words"]
