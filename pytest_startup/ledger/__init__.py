"""The rank ledger: per rank and tier what was expected, found, loaded, hit, tuned, saved, missed and written."""
