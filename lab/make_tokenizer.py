from tiny_tokenizer import save_tokenizer, train_tokenizer

save_tokenizer(train_tokenizer(2048, 20_000), "tokenizer")
