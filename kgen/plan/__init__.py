"""How a spec runs on a GPU: every number and every choice is made here."""
