"""What documents take for granted when their code runs: the models, files and arrays that a page's setup comment names."""
