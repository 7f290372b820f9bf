"""Speed and memory of the zoo, beside hand-written floors and other libraries."""
