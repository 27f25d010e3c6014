"""Cases of the table that run beside the unit tests: of each capability that the table alone covers, a cheap real one."""

SPINE = (
    "tensor:a_tied_table_of_an_odd_size",
    "pairs:heads_of_attention",
    "sequences:forwards_without_gradients",
    "vocabulary:labels_that_are_ignored",
    "mixtures:experts_with_losses_of_their_router",
    "context:a_model_by_hand",
    "in_half:stages_train_as_by_hand_to_the_last_bit",
    "recomputed:what_runs_again_is_that_of_one_process",
    "offloaded:what_comes_back_is_what_went",
    "without_values:it_trains_as_with_values",
    "sharded_stages:odd_sizes_shared_and_frozen_weights",
    "sharded_parts:a_rank_holds_its_share_alone",
    "tensor_stages:divided_stages_between_steps",
)
