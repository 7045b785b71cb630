"""The graph of operators: nodes, the plan for given data, and running one node."""
