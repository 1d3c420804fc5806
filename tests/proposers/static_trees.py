"""A static tree that the tests of this folder share."""

# Every path after its parent and earlier siblings, in the order in which budgets use them.
IN_ORDER_OF_USE = [
    (0,),
    (0, 0),
    (1,),
    (0, 0, 0),
    (1, 0),
    (0, 1),
    (2,),
    (1, 0, 0),
    (2, 1),
    (1, 0, 2),
]
