"""Parts for the transformer zoo; the module `parts` declares them."""
