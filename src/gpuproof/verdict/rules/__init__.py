"""Rules: read, refused where they cannot judge, and held against what was measured.

`load_rules(file)` and `read_rules(text)` give rules; `judge_rules(rules, facts)` gives outcomes, and
`judge_measures(rules, facts)` those of figures beside what they are about.
"""

from gpuproof.verdict.facts import FleetFacts
from gpuproof.verdict.rules.judge import judge_measures, judge_rules
from gpuproof.verdict.rules.load import load_rules, read_rules, rules_of_entries
from gpuproof.verdict.rules.model import Rules

__all__ = [
    "FleetFacts",
    "Rules",
    "judge_measures",
    "judge_rules",
    "load_rules",
    "read_rules",
    "rules_of_entries",
]
