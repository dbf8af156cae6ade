//! Completions for bash, zsh and fish, made from the tables.
