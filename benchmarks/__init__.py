"""How fast the zoo is, and how much memory it takes, beside a hand-written floor and beside its peers."""
