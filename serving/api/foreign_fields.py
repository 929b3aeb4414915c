"""Names of request fields that other servers know and this one does not, with what becomes of a request that sets them.

Sources: the request models of OpenAI, vLLM, SGLang, llama.cpp, TGI, TensorRT-LLM and Triton, Ollama, LMDeploy, Mistral,
DeepSeek, Anthropic, OpenRouter, Fireworks, Dynamo, Hugging Face's `generate` and text-generation-webui. A field that
would change the answer is refused unless its value is neutral; one that only concerns speed or bookkeeping is ignored
with a warning. Fields that a wire model declares are never looked up here, so a name can be foreign to one route only.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Foreign:
    """A field that changes the answer of the server that knows it.

    Args:
        ours: this server's field, or what to do instead; empty = there is none.
        neutral: values that change nothing. Null and empty texts, lists and objects are neutral everywhere.
    """

    ours: str = ""
    neutral: tuple[object, ...] = ()

    def changes_nothing(self, value: object) -> bool:
        """Whether the value is neutral; true and 1 are different values."""
        if value is None or value == "" or value == [] or value == {}:
            return True
        return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in self.neutral)


def _all(names: str, *neutral: object) -> dict[str, Foreign]:
    return {name: Foreign(neutral=neutral) for name in names.split()}


def _renamed(ours: str, names: str, *neutral: object) -> dict[str, Foreign]:
    return {name: Foreign(ours, neutral) for name in names.split()}


_RENAMED = {
    **_renamed(
        "max_tokens",
        "max_new_tokens max_output_tokens max_completion_tokens max_tokens_to_sample max_generated_tokens n_predict "
        "num_predict max_gen_len max_length request_output_len completion_max_tokens",
    ),
    **_renamed("min_tokens", "min_new_tokens min_length min_completion_tokens", 0),
    **_renamed("repetition_penalty", "repeat_penalty rep_pen penalty_repeat encoder_repetition_penalty", 1),
    **_renamed("presence_penalty", "penalty_present", 0),
    **_renamed("frequency_penalty", "penalty_freq", 0),
    **_renamed("stop", "stop_sequences stop_strings stop_words stopping_strings stop_sequence custom_stopping_strings"),
    **_renamed("stop_token_ids", "stop_tokens eos_token_id end_id eos_token_ids stop_ids"),
    **_renamed("seed", "random_seed sampling_seed"),
    **_renamed("n", "num_return_sequences num_completions n_cmpl candidate_count best_of", 1),
    **_renamed("temperature: 0 for greedy sampling", "do_sample", True),
    **_renamed("temperature: 0", "greed_sampling greedy", False),
    **_renamed("top_k", "runtime_top_k", 0, -1),
    **_renamed("top_p", "runtime_top_p", 1),
    **_renamed("logprobs", "n_probs top_n_tokens num_logprobs top_logprobs top_logprobs_num", 0),
    **_renamed("logprobs", "return_logprob return_log_probs decoder_input_details details", False),
    **_renamed("logit_bias", "sequence_bias embedding_bias"),
    **_renamed("ignore_eos", "ban_eos_token", False),
    **_renamed("include_stop_str_in_output", "no_stop_trim", False),
    **_renamed("echo", "return_full_text", False),
    **_renamed("truncate_prompt_tokens", "truncate prompt_truncate_len truncation_length max_context_length"),
    **_renamed("prompt_logprobs", "logprob_start_len", -1),
    **_renamed("return_token_ids", "return_tokens return_prompt_token_ids return_completion_token_ids", False),
    **_renamed("cache_salt", "extra_key cache_salt_id prompt_cache_isolation_key"),
    **_renamed("prompt, or messages", "inputs text input text_input input_text"),
    **_renamed("prompt with token ids", "input_ids prompt_token_ids"),
    **_renamed("prompt", "messages"),
    **_renamed("messages", "prompt"),
    **_renamed("a message of role system", "system system_prompt"),
    **_renamed("the fields themselves, at the top level", "extra_body parameters options sampling_params nvext"),
    **_renamed("the fields themselves, at the top level", "generation_config gen_config"),
    **_renamed("chat_template_kwargs", "enable_thinking thinking think"),
    **_renamed("chat_template_kwargs", "chat_template_kwargs add_generation_prompt continue_final_message"),
    **_renamed("reasoning_effort", "reasoning reasoning_effort output_config"),
    **_renamed("stream_options.include_usage", "stream_include_usage", False),
    **_renamed("stream_options.continuous_usage_stats", "stream_continuous_usage_stats", False),
    **_renamed("add_special_tokens", "add_bos_token add_special", True),
}

_CONSTRAINED = _all(
    "guided_json guided_regex guided_choice guided_grammar guided_json_object guided_decoding_backend "
    "guided_whitespace_pattern guided_decoding guided_decoding_params guided_decoding_guide "
    "guided_decoding_guide_type structured_outputs structural_tag regex ebnf json_schema grammar grammar_string "
    "grammar_triggers preserved_tokens format output_format stop_regex response_schema response_mime_type "
    "guidance choice json_object"
) | _all("grammar_lazy", False)

_SAMPLERS = {
    **_all(
        "typical_p typical top_p_decay tfs tfs_z top_h epsilon_p repetition_penalty_range_slope length_penalty "
        "len_penalty guidance_scale num_beams num_beam_groups beam_width dynatemp_exponent smoothing_curve",
        1,
    ),
    **_all("typ_p", 0, 1),
    **_all(
        "no_repeat_ngram_size encoder_no_repeat_ngram_size repetition_ngram_size repetition_ngram_threshold mirostat "
        "mirostat_mode dynatemp_range dry_multiplier xtc_probability top_a top_p_min epsilon_cutoff eta_cutoff "
        "epsilon eta smoothing_factor quadratic_sampling penalty_alpha diversity_penalty min_keep n_indent n_keep "
        "num_keep n_discard t_max_predict_ms max_time skew nsigma beam_search_diversity_rate repetition_penalty_range "
        "adaptive_decay max_tokens_second thinking_budget max_thinking_tokens",
        0,
    ),
    **_all("top_n_sigma adaptive_target", -1, 0),
    **_all("repeat_last_n penalty_last_n", -1),
    **_all(
        "use_beam_search early_stopping token_healing renormalize_logits remove_invalid_values temperature_last "
        "raw_output raw use_raw_prompt watermark repetition_detection exclude_last_generation_logits "
        "backend_sampling_only",
        False,
    ),
    **_all("penalize_nl penalize_newline detokenize do_preprocess", True),
    **_all("samplers sampler_priority sampler_order sampler_seq logits_processors logits_processor"),
    **_all("logits_processor_name custom_logit_processor custom_params custom_generate vllm_xargs extra_args"),
    **_all("bad_words bad_words_ids bad_token_ids bad banned_tokens banned_strings ban_strings custom_token_bans"),
    **_all("allowed_token_ids force_words_ids suppress_tokens begin_suppress_tokens forced_bos_token_id"),
    **_all("forced_eos_token_id exponential_decay_length_penalty beam_width_array top_p_reset_ids negative_prompt"),
    **_all("penalty_prompt dry_sequence_breakers thinking_token_budget thinking_budget_tokens reasoning_budget"),
    **_all("reasoning_budget_tokens logprob_token_ids token_ids_logprob logprobs_mode", -1, "raw_logprobs"),
}

_PROMPT = _all(
    "chat_template template instruction_template tool_prompt guideline documents document context input_prefix "
    "input_suffix input_extra prefix_text suffix prompt_embeds input_embeds mm_processor_kwargs media_io_kwargs "
    "multi_modal_data multimodal_data image_data video_data audio_data images image_url num_ctx chat_format "
    "generation_prompt positional_embed_overrides decoder_input_ids prompt_table_extra_id conversation_id "
    "previous_response_id session_params context_management container character preset"
) | _all("safe_prompt thinking_forced_open crop_images use_audio_in_video prompt_ignore_length", False)

_MODEL = _all(
    "lora lora_path lora_id lora_name lora_request lora_adapter adapter_id adapter_name adapters models prompt_adapter "
    "prompt_adapter_request draft_model"
)

_ANSWER = {
    **_all(
        "return_hidden_states return_routed_experts return_meta_info return_entropy return_bytes return_prompt_text "
        "return_text_in_logprobs return_cached_tokens_details return_context_logits return_generation_logits "
        "return_progress return_dict_in_generate output_scores output_logits output_hidden_states timings_per_token "
        "post_sampling_probs return_output_log_probs logits_all",
        False,
    ),
    **_all("include_reasoning separate_reasoning stream_reasoning parse_tool_calls", True),
    **_all("reasoning_format", "none", "auto"),
    **_all("response_fields additional_model_outputs output_kind prompt_mode transforms plugins compliance"),
    **_all("functions function_call", "none"),
    **_all("tool_choice", "none", "auto"),
    **_all("tools modalities audio prediction web_search_options search_parameters search_settings mcp_servers"),
    **_all("background deferred", False),
    **_all("guardrails safety_model citation_options moderation"),
    **_all("context_length_exceeded_behavior", "error"),
    **_all("kv_transfer_params ec_transfer_params disaggregated_params bootstrap_host bootstrap_port bootstrap_room"),
    **_all("migration_request token_data"),
}

_OWN_NEUTRAL = {"echo": Foreign(neutral=(False,)), "modalities": Foreign(neutral=(["text"],))}

REFUSED: Mapping[str, Foreign] = {
    **_RENAMED,
    **_CONSTRAINED,
    **_SAMPLERS,
    **_PROMPT,
    **_MODEL,
    **_ANSWER,
    **_OWN_NEUTRAL,
}
"""Fields of generation requests that change the answer."""

HARMLESS = frozenset(
    (
        # bookkeeping of OpenAI and its relatives
        "metadata store service_tier prompt_cache_key prompt_cache_retention prompt_cache_options safety_identifier "
        "verbosity parallel_tool_calls user_id provider route usage extra_headers extra_query timeout include "
        "inference_geo anthropic_version anthropic_beta betas cache_control api_key api_base base_url "
        # where and how fast a request runs
        "stream_interval rid data_parallel_rank routed_dp_rank disagg_prefill_dp_rank routing_key custom_labels "
        "log_metrics keep_alive id_slot slot_id cache_prompt n_cache_reuse num_thread num_gpu num_batch main_gpu "
        "use_mmap use_mlock low_vram f16_kv numa vocab_only use_cache with_cache preserve_cache skip_clone "
        "flat_logprobs skip_reading_prefix_cache backend_sampling sse_ping_interval speculation lookahead_config "
        "prompt_lookup_num_tokens return_perf_metrics perf_metrics_in_response agent_hierarchy conversation_params "
        "scheduling_params backend_instance_id annotations prompt_cache_max_len priority_class agent_cfg "
        "speculative.n_max speculative.n_min speculative.p_min speculative.type verbose "
        # parameters of samplers that are refused themselves
        "dry_base dry_allowed_length dry_penalty_last_n xtc_threshold mirostat_tau mirostat_eta mirostat_target "
        "mirostat_lr dynatemp_min dynatemp_max pad_id pad_token_id bos_token_id "
        # names that chat front ends send along
        "mode chat_id session session_id message_id parent_id conversation trace_id span_id tags caching"
    ).split()
)
"""Fields that change no token of an answer."""

TOKENIZING: Mapping[str, Foreign] = {
    **_all("chat_template documents mm_processor_kwargs media_io_kwargs truncate_prompt_tokens truncation_side"),
    **_all("tools images image_data suffix reasoning_effort"),
    **_renamed("prompt, or messages", "content text input inputs"),
    **_renamed("tokens", "token_ids ids"),
    **_renamed("add_special_tokens", "add_special add_bos_token", True),
    **_renamed("return_token_strs", "with_pieces", False),
    **_renamed("chat_template_kwargs", "enable_thinking thinking"),
    **_renamed("the fields themselves, at the top level", "extra_body"),
    "skip_special_tokens": Foreign(neutral=(False,)),
}
"""Fields of /tokenize and /detokenize that change tokens or text."""

MESSAGE: Mapping[str, Foreign] = {
    **_renamed("continue_final_message", "prefix partial", False),
    **_all("images videos"),
}
"""Keys of a message. All others go to the chat template."""
