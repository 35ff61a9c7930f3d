"""Write a table of invented rents: area in square meters, age in years, rent with noise that grows with the area."""

import sys
from pathlib import Path
from random import Random

random = Random(0)
lines = ["area,age,rent"]
for _ in range(200):
    area, age = random.uniform(20, 140), random.uniform(0, 80)
    rent = 250 + 9 * area - 0.02 * area**2 - 3 * age + 0.05 * age**2 + random.gauss(0, 0.8 * area)
    lines.append(f"{area:.1f},{age:.0f},{rent:.0f}")
Path(sys.argv[1]).write_text("\n".join(lines) + "\n", encoding="utf-8")
