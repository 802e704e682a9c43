"""Row reductions: sums, softmax, norms and their gradients along lines of a tensor."""
