"""Two runs side by side: may they be compared, and what do their launches say, measure by measure?"""

DOUBTS = "analysis/comparing/doubts.csv"
"""Every doubt: what it says in a few words, and how it touches a difference."""
