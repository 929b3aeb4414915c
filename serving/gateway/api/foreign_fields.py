"""Request fields that other servers know and this one does not, and the treatment of a request that sets them.

Sources: the request models of OpenAI, vLLM, SGLang, llama.cpp, TGI, TensorRT-LLM and Triton, Ollama, LMDeploy, Mistral,
DeepSeek, Anthropic, OpenRouter, Fireworks, Dynamo, Hugging Face's `generate` and text-generation-webui. A field that
would change the answer is refused unless its value is neutral; one that only concerns speed or bookkeeping is ignored
with a warning. Declared fields of a wire model are never looked up here, so a name can be foreign to one route only.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

_USUAL_ORDERS = frozenset(
    ("penalties top_k top_p min_p temperature", "top_k top_p min_p temperature", "temperature top_k top_p min_p")
) | frozenset(("e k p m t", "k p m t"))
_ORDERED = frozenset(name for order in _USUAL_ORDERS for name in order.split())
"""Names, long or of one letter, by which lists of samplers refer to those that exist in this server."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """A field that changes the response of the servers that support it.

    Args:
        ours: this server's equivalent field, or what to do instead; empty = none. A request that sets both to the same
            value is accepted.
        neutral: values without effect. Null and empty texts, lists and objects are always neutral.
        idle: other fields of a body with the values (None = absent) for which this field has no effect.
        neutral_if: predicate for further values without effect.
    """

    ours: str = ""
    neutral: tuple[object, ...] = ()
    idle: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    neutral_if: Callable[[object], bool] | None = None

    def changes_nothing(self, value: object, body: Mapping[str, object]) -> bool:
        """Whether this value of the field has no effect, given the other fields of the body."""
        if value is None or value == "" or value == [] or value == {}:
            return True
        if _among(value, self.neutral) or (body.get(self.ours) is not None and _among(value, (body[self.ours],))):
            return True
        if self.idle and all(_among(body.get(name), values) for name, values in self.idle.items()):
            return True
        return self.neutral_if is not None and self.neutral_if(value)


def _among(value: object, values: tuple[object, ...]) -> bool:
    """True and 1 are different values."""
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in values)


def _is_usual_order(value: object) -> bool:
    """Whether a list of samplers runs those that exist here in the order of this server; other orders are refused."""
    if isinstance(value, list) and value == [6, 0, 1, 3, 4, 2, 5]:  # KoboldCpp's
        return True
    if not isinstance(value, str | list):
        return False
    return " ".join(name for name in value if isinstance(name, str) and name in _ORDERED) in _USUAL_ORDERS


def _all(names: str, *neutral: object) -> dict[str, Foreign]:
    return {name: Foreign(neutral=neutral) for name in names.split()}


def _renamed(ours: str, names: str, *neutral: object) -> dict[str, Foreign]:
    return {name: Foreign(ours, neutral) for name in names.split()}


_NO_PENALTY = {"repetition_penalty": (None, 1), "presence_penalty": (None, 0), "frequency_penalty": (None, 0)}
_GREEDY = {"temperature": (0,)}
_NO_FUNCTIONS = {"function_call": ("none",)}

_RENAMED = {
    **_renamed(
        "max_tokens",
        "max_new_tokens max_output_tokens max_completion_tokens max_tokens_to_sample max_generated_tokens n_predict "
        "num_predict max_gen_len max_length request_output_len completion_max_tokens max_out_tokens "
        "max_response_tokens max_output_length max_gen_toks output_tokens tokens_to_generate",
    ),
    **_renamed("min_tokens", "min_new_tokens min_length min_completion_tokens", 0),
    **_renamed("repetition_penalty", "repeat_penalty rep_pen penalty_repeat encoder_repetition_penalty", 1),
    **_renamed("repetition_penalty", "penalty_score", 1),
    **_renamed("presence_penalty", "penalty_present", 0),
    **_renamed("frequency_penalty", "penalty_freq", 0),
    **_renamed("temperature", "temp"),
    **_renamed("stream", "streaming stream_output stream_tokens", False),
    **_renamed("stop", "stop_sequences stop_strings stop_words stopping_strings stop_sequence custom_stopping_strings"),
    **_renamed("stop", "stop_string"),
    **_renamed("stop_token_ids", "stop_tokens eos_token_id end_id eos_token_ids stop_ids eos_token"),
    **_renamed("seed", "random_seed sampling_seed sampler_seed", -1),
    **_renamed("n", "num_return_sequences num_completions n_cmpl candidate_count best_of num_results", 1),
    "do_sample": Foreign("temperature: 0 for greedy sampling", (True,), _GREEDY),
    **{name: Foreign("temperature: 0", (False,), _GREEDY) for name in ("greed_sampling", "greedy")},
    **_renamed("top_k", "runtime_top_k k", 0, -1),
    **_renamed("top_p", "runtime_top_p p", 1),
    **_renamed("logprobs", "n_probs top_n_tokens num_logprobs top_logprobs top_logprobs_num", 0),
    **_renamed("logprobs", "return_logprob return_log_probs decoder_input_details details", False),
    **_renamed("logit_bias", "sequence_bias embedding_bias"),
    **_renamed("ignore_eos", "ban_eos_token", False),
    **_renamed("include_stop_str_in_output", "no_stop_trim", False),
    **_renamed("echo", "return_full_text", False),
    **_renamed("truncate_prompt_tokens", "truncate prompt_truncate_len truncation_length max_context_length", 0),
    **_renamed("truncate_prompt_tokens", "prompt_truncation", "OFF"),
    **_renamed("prompt_logprobs", "logprob_start_len", -1),
    **_renamed("return_token_ids", "return_tokens return_prompt_token_ids return_completion_token_ids", False),
    **_renamed("cache_salt", "extra_key cache_salt_id prompt_cache_isolation_key"),
    **_renamed("prompt, or messages", "inputs text input text_input input_text contents"),
    **_renamed("prompt with token ids", "input_ids prompt_token_ids"),
    **_renamed("prompt", "messages"),
    **_renamed("messages", "prompt chat_history"),
    **_renamed("a message of role system", "system system_prompt system_instruction instructions preamble"),
    **_renamed("the fields themselves, at the top level", "extra_body parameters options sampling_params nvext"),
    **_renamed("the fields themselves, at the top level", "generation_config gen_config inference_config"),
    **_renamed("chat_template_kwargs", "enable_thinking thinking think thinking_config"),
    **_renamed("/v1/chat/completions", "chat_template_kwargs reasoning_effort"),
    **_renamed("/v1/chat/completions", "add_generation_prompt", True),
    **_renamed("/v1/chat/completions", "continue_final_message", False),
    **_renamed("continue_final_message", "continue_ assistant_prefix prefill", False),
    **_renamed("reasoning_effort", "reasoning output_config"),
    **_renamed("stream_options.include_usage", "stream_include_usage", False),
    **_renamed("stream_options.continuous_usage_stats", "stream_continuous_usage_stats", False),
    **_renamed("add_special_tokens", "add_bos_token add_special", True),
}

_CONSTRAINED = _all(
    "guided_decoding guided_decoding_params guided_decoding_guide guided_decoding_guide_type "
    "structural_tag regex regex_pattern ebnf json_schema grammar grammar_string grammar_triggers preserved_tokens "
    "format output_format stop_regex response_schema response_json_schema response_mime_type guidance choice"
) | _all("grammar_lazy json_object", False)

_SAMPLERS = {
    **_all(
        "typical_p typical top_p_decay tfs tfs_z top_h epsilon_p repetition_penalty_range_slope length_penalty "
        "len_penalty guidance_scale cfg_scale num_beams num_beam_groups beam_width",
        1,
    ),
    **_all("typ_p dynatemp_low dynatemp_high min_temp max_temp", 0, 1),
    **_all(
        "no_repeat_ngram_size encoder_no_repeat_ngram_size repetition_ngram_size repetition_ngram_threshold mirostat "
        "mirostat_mode dynatemp_range dynatemp_min dynatemp_max dry_multiplier xtc_probability top_a top_p_min "
        "epsilon_cutoff epsilon eta_cutoff eta smoothing_factor quadratic_sampling penalty_alpha diversity_penalty "
        "min_keep n_indent max_time skew nsigma beam_search_diversity_rate max_tokens_second "
        "thinking_budget max_thinking_tokens echo_last",
        0,
    ),
    **_all("t_max_predict_ms", 0, -1),
    **_all("top_n_sigma adaptive_target", -1, 0, -0.01),
    **_all(
        "use_beam_search early_stopping token_healing renormalize_logits remove_invalid_values temperature_last "
        "raw_output raw use_raw_prompt watermark watermarking repetition_detection exclude_last_generation_logits "
        "backend_sampling_only dynamic_temperature auto_max_new_tokens",
        False,
    ),
    **_all("detokenize do_preprocess", True),
    **{
        name: Foreign(neutral=(-1,), idle=_NO_PENALTY)
        for name in (
            "repeat_last_n penalty_last_n repetition_penalty_range penalty_range repetition_range rep_pen_range "
            "rep_pen_slope repetition_decay repetition_penalty_decay repetition_context_size presence_context_size "
            "frequency_context_size penalize_nl penalize_newline penalty_prompt"
        ).split()
    },
    **{
        name: Foreign(neutral_if=_is_usual_order)
        for name in ("samplers", "sampler_priority", "sampler_order", "sampler_seq")
    },
    **_all("logits_processors logits_processor logit_processor logits_processor_name custom_logit_processor"),
    **_all("custom_params custom_generate vllm_xargs extra_args stopping_criteria watermarking_config"),
    **_all("bad_words_ids bad_token_ids bad banned_tokens banned_strings ban_strings custom_token_bans"),
    **_all("banned_words banned_phrases allowed_tokens allowed_words force_words_ids constraints"),
    **_all("suppress_tokens begin_suppress_tokens forced_bos_token_id forced_eos_token_id negative_prompt"),
    **_all("exponential_decay_length_penalty beam_width_array top_p_reset_ids dola_layers"),
    **_all("thinking_token_budget thinking_budget_tokens reasoning_budget"),
    **_all("reasoning_budget_tokens logprob_token_ids token_ids_logprob logprobs_mode", -1, "raw_logprobs"),
    **_all("verbosity", "medium"),
}

_PROMPT = _all(
    "chat_template template instruction_template instruction_template_str chat_template_str chat_instruct_command "
    "role_mapping guideline documents document context memory input_prefix input_suffix input_extra prefix_text suffix "
    "prompt_embeds input_embeds mm_processor_kwargs media_io_kwargs multi_modal_data multimodal_data image image_data "
    "video_data audio_data images videos image_url audio_url video_url files file_ids attachments num_ctx chat_format "
    "generation_prompt positional_embed_overrides decoder_input_ids prompt_table_extra_id conversation_id "
    "previous_response_id session_params context_management container character preset bot_name greeting user_bio "
    "name1 name2 data_sources connectors",
    "Content-only",
) | _all("safe_prompt thinking_forced_open crop_images use_audio_in_video prompt_ignore_length impersonate", False)

_MODEL = _all(
    "lora lora_path lora_id lora_name lora_request lora_adapter lora_adapters lora_weights adapter adapter_id "
    "adapter_name adapters models prompt_adapter prompt_adapter_request draft_model"
)

_ANSWER = {
    **_all(
        "return_hidden_states return_routed_experts return_meta_info return_entropy return_bytes return_prompt_text "
        "return_text_in_logprobs return_context_logits return_generation_logits return_dict_in_generate output_scores "
        "output_logits output_hidden_states output_attentions post_sampling_probs return_output_log_probs logits_all "
        "return_images return_related_questions enable_search enable_citation enable_code_interpreter raw_prompting "
        "search_queries_only force_single_step web_search reasoning_in_content",
        False,
    ),
    **_all("separate_reasoning stream_reasoning parse_tool_calls", True),
    **_all("reasoning_format", "none", "auto"),
    **_all("response_fields additional_model_outputs output_kind prompt_mode transforms plugins compliance"),
    "functions": Foreign(idle=_NO_FUNCTIONS),
    **_all("function_call", "none"),
    **_all("tool_choice", "none", "auto"),
    **_all("include_reasoning", True),
    **_all("parallel_tool_calls", True, False),
    **_all("tools tool_config audio web_search_options search_parameters search_settings search_options search_mode"),
    **_all("search_domain_filter search_recency_filter mcp_servers code_execution"),
    **_all("modalities", ["text"]),
    **_all("background deferred", False),
    **_all("guardrails safety_model safety_mode safety_settings citation_options citation_quality moderation"),
    **_all("context_length_exceeded_behavior", "error"),
    **_all("kv_transfer_params ec_transfer_params disaggregated_params bootstrap_host bootstrap_port bootstrap_room"),
    **_all("migration_request token_data"),
    **_all("echo", False),
}

REFUSED_BECAUSE: Mapping[str, Mapping[str, Foreign]] = {
    "this server has another name for it": _RENAMED,
    "constraints on the output are given by `response_format`, `structured_outputs` or `tools`": _CONSTRAINED,
    "it is a way of sampling that is not implemented": _SAMPLERS,
    "it would change the prompt; the model reads the text of `prompt` or `messages` only, by its own chat template": (
        _PROMPT
    ),
    "one model is served, without adapters": _MODEL,
    "the response would contain what this server does not compute, or have another form": _ANSWER,
}
"""Fields of generation requests that change the response, by the reason why they are refused."""
REFUSED: Mapping[str, Foreign] = {name: one for fields in REFUSED_BECAUSE.values() for name, one in fields.items()}

HARMLESS = frozenset(
    (
        # bookkeeping of OpenAI and its relatives
        "metadata store service_tier prompt_cache_key prompt_cache_retention prompt_cache_options safety_identifier "
        "max_tool_calls client_metadata speed user_id provider route usage extra_headers "
        "extra_query timeout include inference_geo anthropic_version anthropic_beta betas cache_control api_key "
        "api_base base_url "
        # where and how fast a request runs
        "guided_decoding_backend "
        "stream_interval rid data_parallel_rank routed_dp_rank disagg_prefill_dp_rank routing_key custom_labels "
        "log_metrics keep_alive id_slot slot_id cache_prompt n_cache_reuse num_thread num_gpu num_batch main_gpu "
        "use_mmap use_mlock low_vram f16_kv numa vocab_only use_cache with_cache preserve_cache skip_clone "
        "flat_logprobs skip_reading_prefix_cache backend_sampling sse_ping_interval speculation lookahead_config "
        "prompt_lookup_num_tokens num_draft_tokens speculative_ngram ngram_corpus_id agent_hierarchy "
        "conversation_params scheduling_params backend_instance_id annotations prompt_cache_max_len priority_class "
        "agent_cfg generate_window speculative.n_max speculative.n_min speculative.p_min speculative.type prediction "
        # cost of a run; the response itself is the same
        "return_perf_metrics perf_metrics_in_response return_progress timings_per_token return_cached_tokens_details "
        "verbose incremental_output "
        # parameters of features that are refused: samplers, tools, images, sliding contexts, experts
        "dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breakers dry_range xtc_threshold mirostat_tau "
        "mirostat_eta mirostat_target mirostat_lr dynatemp_exponent temp_exponent smoothing_curve adaptive_decay "
        "pad_id pad_token_id bos_token_id tool_prompt images_config max_dynamic_patch min_dynamic_patch n_keep "
        "num_keep n_discard routed_experts_start_len routed_experts_prompt_start return_token_offsets return_mm_kwargs "
        # names that chat front ends send along
        "mode chat_id session session_id message_id parent_id conversation trace_id span_id tags caching"
    ).split()
)
"""Fields that change no token of a response."""

TOKENIZING: Mapping[str, Foreign] = {
    **_all("chat_template documents mm_processor_kwargs media_io_kwargs truncate_prompt_tokens truncation_side"),
    **_all("images image_data suffix reasoning_effort"),
    **_renamed("prompt, or messages", "content text input inputs"),
    **_renamed("tokens", "token_ids ids"),
    **_renamed("add_special_tokens", "add_special add_bos_token", True),
    **_renamed("return_token_strs", "with_pieces", False),
    **_renamed("chat_template_kwargs", "enable_thinking thinking"),
    **_renamed("the fields themselves, at the top level", "extra_body"),
    "parse_special": Foreign(neutral=(True,)),
    "skip_special_tokens": Foreign(neutral=(False,)),
}
"""Fields of /tokenize and /detokenize that change tokens or text."""

MESSAGE: Mapping[str, Foreign] = {
    **_renamed("continue_final_message", "prefix partial", False),
    **_all("images videos"),
}
"""Keys of a message. All others are passed to the chat template."""

KWARGS: Mapping[str, Foreign] = {
    **_all("messages tools documents chat_template"),
    **_renamed("add_generation_prompt", "add_generation_prompt", True),
    **_renamed("continue_final_message", "continue_final_message", False),
}
"""Chat template variables that the server sets itself, so that `chat_template_kwargs` cannot."""
