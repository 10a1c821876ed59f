"""Reports: terminal, JUnit properties, JSON, HTML, CSV, annotations. They show verdicts and never decide."""
