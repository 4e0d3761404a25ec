"""What a user may say: the spec language, its files and its rules."""
