// The library's whole interface: plain C over raw pointers, mirrored field by field in layout.py.
//
// Ownership: the caller owns every byte that these structs point to and keeps it alive; the library owns only a
// `cm_engine` (threads and scratch memory). No function allocates during a step. All functions return 0, or a
// `cm_error`; `cm_error_text` describes the error.
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define CM_INTERFACE 22  // raised with every change of this file; the loader compares

// Storage forms of numbers. Activations and the KV cache are F32 or BF16 (the model's dtype); the KV cache may be INT8.
// W8A16 is for weights only: INT8 with 16-bit activations, and possibly scales of inputs. BF16_SHORT is also for
// weights only: BF16 in fewer bytes, see short_bf16.h.
enum cm_form { CM_F32 = 0, CM_BF16 = 1, CM_INT8 = 2, CM_W8A16 = 3, CM_BF16_SHORT = 4 };

enum cm_error {
    CM_OK = 0,
    CM_BAD_ARGUMENT = 1,
    CM_NO_MEMORY = 2,
    CM_NOT_FINITE = 3,
    CM_NO_SHORT_FORM = 4,
    CM_GROUP = 5,  // a peer was late, or lost permanently; the text has the details
};

// One product y = x W^T + b, or `groups` of them (one per attention head), all of the same size. `packed` is the output
// of cm_pack: panels of 32 output features, then (INT8, W8A16) scales and column sums; see pack.h.
typedef struct {
    int32_t out_features;  // per group; 0 = no product
    int32_t in_features;
    int32_t groups;
    int32_t form;  // cm_form of the weights
    const void* packed;
    const float* bias;  // [groups * out_features], or null
} cm_linear;

// Data that attention keeps per token: one latent and one rotated key for all heads, or a value and a rotated key for
// each KV head, which a group of query heads shares.
enum cm_attention { CM_LATENT = 0, CM_GROUPED = 1 };

typedef struct {
    int32_t kind;     // cm_attention, the same in all layers of a model
    int32_t rotates;  // grouped: 0 = without positions
    int32_t window;   // grouped: number of latest tokens that a token sees, including itself; 0 = all
    const float* attention_norm;  // [hidden]
    cm_linear into;  // hidden -> query latent (or queries) ++ kv latent ++ rope key; grouped: queries ++ keys ++ values
    const float* query_norm;  // [q_lora]; null without q_lora, and then query_up is absent. Grouped: [head_dim], or null
    const float* key_norm;    // grouped: [head_dim], or null
    const float* sinks;  // grouped: [heads], scores that take a share of the softmax without a value; or null
    // From here to value_absorb: latent only.
    cm_linear query_up;
    const float* latent_norm;  // [kv_lora]
    cm_linear expand;          // kv latent -> per head: position-free key ++ value (plain heads, prompt chunks)
    cm_linear key_absorb;      // groups = heads: position-free query -> latent
    cm_linear value_absorb;    // groups = heads: latent -> value
    cm_linear out;
    const float* feed_norm;  // [hidden]
    cm_linear gate_up;       // dense layers, or the shared experts of expert layers; gate first, then up
    cm_linear down;
    cm_linear gate;          // F32; absent in dense layers
    const float* gate_bias;  // [experts], or null
    const cm_linear* expert_gate_up;  // [experts]
    const cm_linear* expert_down;     // [experts]
} cm_block;

// The multi-token-prediction layer: hidden' = block(fuse(token_norm(embed(next)) ++ hidden_norm(hidden)))
typedef struct {
    const void* embed;  // [vocab, hidden], the activations' form
    const float* token_norm;
    const float* hidden_norm;
    cm_linear fuse;
    cm_block block;
    const float* norm;
    cm_linear head;
} cm_draft_layer;

typedef struct {
    int32_t form;  // of activations: CM_F32 or CM_BF16
    int32_t vocab, hidden, layers, heads;
    int32_t q_lora;  // 0 = queries are projected directly
    int32_t kv_lora, nope_dim, rope_dim, value_dim;
    int32_t kv_heads, head_dim;  // grouped: nope_dim + rope_dim = value_dim = head_dim; latent: 0
    int32_t experts, top_k, expert_groups, kept_groups;  // expert_groups = 1: no group limit
    int32_t sigmoid_scores;                              // 1: DeepSeek-V3 (noaux_tc); 0: softmax scores
    int32_t normalise_weights;
    int32_t bf16_results;  // 1: the result of an expert is rounded to BF16 before it is weighted and added
    float routed_scaling;
    // The gates of routed experts. Limit 0: silu(gate) * up, like all others; otherwise (up + 1) * gate * sigmoid(alpha
    // * gate), with gate at most the limit, and up within it on both sides.
    float gate_alpha, gate_limit;
    float norm_eps, latent_norm_eps;
    float softmax_scale;
    const float* rope_frequencies;  // [rope_dim / 2]
    float rope_amplitude;
    const void* embed;  // [vocab, hidden], the activations' form
    const cm_block* blocks;  // [layers]
    const float* norm;
    cm_linear head;
    const cm_draft_layer* draft;  // null = none
} cm_model;

// The paged cache: [blocks, layers, block_tokens, row], see kv_cache.py. Its layer `layers` is the draft layer's. A row
// of grouped attention has one part per KV head, consecutively; the fields below that describe a row then describe such
// a part.
typedef struct {
    void* base;
    int32_t form;  // of the latent part; grouped: of values and keys
    int32_t blocks, layers, block_tokens;
    int32_t row_bytes;     // of a whole token
    int32_t head_bytes;    // grouped: of a KV head's part
    int32_t rope_offset;   // bytes from the row's start to the rotated key (latent kind: in the activations' form)
    int32_t scale_offset;  // INT8: bytes to the row's float32 scale; grouped: to the value's, followed by the key's
    // Blocks may contain only some of the model's layers, with those that have a window separate from the others. Then
    // a table has `width` consecutive entries for each block_tokens positions, and entries that no row of a step sees
    // in its windows may have any value.
    int32_t width;          // without `places`: any
    const int32_t* places;  // [layers of the model][2]: block among these, and layer in it; null = all in one
} cm_cache;

#define CM_TABLE_WIDTH 8  // the most blocks for the same positions

enum cm_draw {
    CM_DRAW_NONE = 0,    // a chunk that is not the last
    CM_DRAW_TOKEN = 1,   // sample here, by the rules of sampler.py
    CM_DRAW_LOGITS = 2,  // return the logits of the last row; the caller samples
};

// One sequence's share of a step; mirrors SequenceStep. Rows of all sequences are consecutive in `ids`.
typedef struct {
    int32_t first_row;   // in ids
    int32_t rows;        // fed tokens, including draft tokens
    int32_t start;       // tokens already in the cache
    int32_t table;       // start of its block table in `tables`
    int32_t table_size;  // blocks
    int32_t drafts;      // the last `drafts` rows are draft tokens to verify (CM_DRAW_TOKEN only)
    int32_t draw;        // cm_draw
    int32_t next_drafts;  // requested draft tokens; 0 = only update the draft layer's cache; -1 = skip the draft layer
    int32_t next_token;   // token after the last row if it is known and not sampled here (an unfinished chunk), else -1
    int32_t keep_hidden;  // 1: return the hidden states of all rows (prompt log-probabilities)
    int32_t alone;        // 1: each row attends alone; 0: all together. Latent only: in latent space, in plain heads
    int32_t top_k;        // 0 = off
    int32_t matcher;      // in the batch's matchers (CM_DRAW_TOKEN only); -1 = all tokens are allowed
    int32_t next_forced;  // maximum number of grammar-forced draft tokens; they precede the draft layer's
    double temperature, top_p, min_p;  // temperature 0 = greedy
    uint64_t seed;
    int64_t position;  // of the first sampled token; keys its random number
} cm_sequence;

// A matcher of a grammar library: an output that follows a grammar, as far as it is known before the step. A step
// passes the tokens that it samples to the matcher, except stop tokens.
typedef struct {
    void* matcher;         // null = unavailable: its sequence gets no token
    const int32_t* stops;  // tokens that end the output: allowed if it is complete
    int32_t stop_count;
    int32_t told;  // 0 before a step; number of tokens that the step has passed to the matcher
} cm_matcher;

// Functions of the grammar library that a step needs, known by addresses only. Vocabularies there have one token more,
// which represents all stop tokens. 0 = done, less = the matcher has failed permanently. Any thread, one for each
// matcher.
typedef struct {
    int32_t (*compute_mask)(void* matcher, uint32_t* mask, size_t mask_bytes);
    int32_t (*consume)(void* matcher, uint32_t token);
    int32_t (*rollback)(void* matcher, size_t tokens);
    int32_t (*forced)(void* matcher, uint32_t* tokens, size_t most);             // their number
    int32_t (*validate)(void* matcher, const uint32_t* tokens, size_t count);  // how many of them may be consumed
} cm_grammar_functions;

typedef struct {
    int32_t sequences, rows;
    const cm_sequence* sequence;
    const int32_t* ids;
    const int32_t* tables;
    int32_t settled;  // 1: the model has written these rows to the cache before; only the draft layer's are written
    int32_t matchers;
    cm_matcher* matcher;  // [matchers]
} cm_batch;

// Results of a step. `max_tokens` = columns of `tokens` and `drafts` (at least drafts + 1 of every sequence).
typedef struct {
    int32_t max_tokens;
    int32_t* token_counts;  // [sequences]
    int32_t* tokens;        // [sequences, max_tokens]: accepted drafts, then one more, unless its grammar allows none
    int32_t* draft_counts;  // [sequences]
    int32_t* drafts;        // [sequences, max_tokens]
    float* logits;          // [sequences with CM_DRAW_LOGITS, vocab], in order; null if there are none
    void* hidden;           // [rows of sequences with keep_hidden, hidden], in order, activations' form; or null
} cm_answer;

typedef struct cm_engine cm_engine;

// What is known of a model's routed experts without the model.
typedef struct {
    int32_t form;           // CM_F32 or CM_BF16: of rows that are not INT8
    int32_t hidden, width;  // outer and inner width of an expert
    int32_t shared_width;   // inner width of the shared experts, if ranks with experts compute them, else 0
    int32_t layers, experts, top_k;  // layers with routed experts; experts of a layer, and of a row
    int32_t bf16_results;   // this and the rest as in cm_model
    float gate_alpha, gate_limit;
} cm_expert_sizes;

enum { CM_ATTENTION = 1, CM_EXPERTS = 2, CM_BOTH = 3 };  // the role of a rank

// Sizes of a rank's window, the same in a whole group but for max_rows; see hardware/ub/native/window.h.
typedef struct {
    int32_t ranks, max_rows, top_k, row_bytes, result_bytes;
} cm_window_shape;

#define CM_MAP_POSITIONS 16
#define CM_MAP_MASKED 0xffffffffu

// A rank's place in a group: each rank computes its own rows, and the experts in its slots for all ranks.
typedef struct {
    int32_t rank, ranks;  // as many as the windows have capacity for; non-members may be missing
    int32_t cores;   // of this host, shared by its ranks
    int32_t layers;  // with routed experts; the draft layer's is the last
    int32_t slots;   // of this rank, in all layers
    void* const* windows;      // [ranks]: mapped here, of the engine's shape; null for a missing rank
    const int32_t* processes;  // [ranks]
    const cm_linear* gate_up;  // [slots], read in every step; out_features 0 = the slot is empty
    const cm_linear* down;     // [slots]
    int32_t shared;  // 1: shared experts are computed by the ranks with experts; only if no rank has both roles
    const cm_linear* shared_gate_up;  // [layers], at a rank with experts; else null
    const cm_linear* shared_down;
    int64_t deadline_ns;       // of each wait for peers
    int64_t gather_ns;         // most that rows wait for others to share the reading of experts' weights; -1 = by a rule
    uint64_t map_version;
    const uint32_t* map;  // [layers][CM_MAP_POSITIONS][experts] rank << 16 | slot, or CM_MAP_MASKED; copied
} cm_group_place;

int32_t cm_interface(void);
const char* cm_instructions(void);     // the kernels' instruction set: "amx", "avx512", "avx2" or "portable"
int32_t cm_short_weights_pay(void);    // 1: BF16_SHORT was measured to be faster than BF16 on such a processor
const char* cm_error_text(void);       // of the last failed call on this thread
int64_t cm_packed_bytes(int32_t out_features, int32_t in_features, int32_t groups, int32_t form);
// weight: [groups * out_features, in_features] dense, of `form`. INT8: int8 with scale [groups * out_features]. W8A16:
// int8 with scale [groups * out_features], then scale of inputs [groups * in_features]; a number is level * both.
// BF16_SHORT: bfloat16; CM_NO_SHORT_FORM = it has too many exponents, pack it as BF16.
int32_t cm_pack(const void* weight, const float* scale, int32_t out_features, int32_t in_features, int32_t groups,
                int32_t form, void* packed);

// Threads and scratch memory for steps of at most `max_rows` rows over contexts of at most `max_context` tokens.
int32_t cm_engine_new(const cm_model* model, const cm_cache* cache, int32_t threads, int32_t max_rows,
                      int32_t max_context, cm_engine** engine);
void cm_engine_free(cm_engine* engine);
// Allow sequences to have matchers from the next step on. Copies the table.
void cm_engine_use_grammars(cm_engine* engine, const cm_grammar_functions* functions);

// A whole step, including the draft layer. A row's result does not depend on the other rows of the call, to the bit.
int32_t cm_step(cm_engine* engine, const cm_batch* batch, const cm_answer* answer);

// ---- tokenizing for a grammar library

// Writes at most `most` tokens of a text; returns the number of all its tokens.
typedef size_t (*cm_tokenize_fn)(const void* data, const uint8_t* text, size_t bytes, uint32_t* tokens, size_t most);
typedef struct cm_text_tokens cm_text_tokens;

// A cache of the tokens of texts. `ask` returns those of a new text; it is called with null data, on any thread.
// Null = no memory.
cm_text_tokens* cm_text_tokens_new(cm_tokenize_fn ask);
void cm_text_tokens_free(cm_text_tokens* texts);
size_t cm_tokenize(const void* texts, const uint8_t* text, size_t bytes, uint32_t* tokens, size_t most);

// ---- groups: engines whose steps depend on each other

// Shape of the window of a rank with this engine in a group of `ranks`; CM_BAD_ARGUMENT if the model has no experts, or
// there are too many rows. shared: as in cm_group_place; its result is one more choice of a row, float32 in any case.
int32_t cm_window_shape_of(const cm_engine* engine, int32_t ranks, int32_t shared, cm_window_shape* shape);
int64_t cm_window_bytes(const cm_window_shape* shape);
// Initialise memory, 64-byte aligned, as the window of a rank. Call it before any peer opens it.
int32_t cm_window_format(void* memory, const cm_window_shape* shape, int32_t owner, int32_t role, uint64_t epoch,
                         uint64_t members);
// For the shell: begin a new epoch at a rank, and wake it. Former members must be dead before.
void cm_window_raise(void* memory, uint64_t epoch, uint64_t members);

// An engine of a rank that only has experts: it takes no steps, but joins a group and serves. max_rows: computed at once,
// times the experts of a row.
int32_t cm_experts_new(const cm_expert_sizes* sizes, int32_t threads, int32_t max_rows, cm_engine** engine);

// From now on the experts of every step are the group's. Windows are read and written until cm_engine_free.
int32_t cm_group_join(cm_engine* engine, const cm_group_place* place);
// Serve peers' rows until `ns` have passed or cm_group_wake was called, before or during it.
int32_t cm_group_serve(cm_engine* engine, int64_t ns);
void cm_group_wake(cm_engine* engine);  // any thread
// Cut further steps of several sequences into this many micro-batches, 1 or 2. Results do not depend on it.
void cm_group_use_micro_batches(cm_engine* engine, int32_t count);
// The next map; used from this rank's next step on, but not before this epoch. Any thread.
int32_t cm_group_set_map(cm_engine* engine, uint64_t version, const uint32_t* map, uint64_t epoch);
// Set the process of rank `rank` from the next epoch on. Any thread.
int32_t cm_group_set_peer(cm_engine* engine, int32_t rank, void* window, int32_t process);
// At a rank without attention: admit a rank without experts to this epoch, or drop it. In order. Any thread.
int32_t cm_group_admit(cm_engine* engine, int32_t rank, void* window);
int32_t cm_group_drop(cm_engine* engine, int32_t rank);
int32_t cm_group_settled(cm_engine* engine);  // 1: all windows that were given are in use. Any thread
uint64_t cm_group_map_version(cm_engine* engine);  // of the oldest that a member uses. Any thread
uint64_t cm_group_epoch(cm_engine* engine);
// Most experts, over all layers, that no rank held in a step since the last call. On the thread of steps.
int32_t cm_group_masked(cm_engine* engine);
void cm_group_counts(cm_engine* engine, uint64_t* counts);  // [layers][experts] rows of this rank sent so far
// per_peer: [3][ranks] bytes of rows sent to each peer, bytes of results from it, ns waited for it as the last one.
// Returns ns of all steps so far, including waits. Any thread.
int64_t cm_group_usage(const cm_engine* engine, uint64_t* per_peer);
// work: [3] ns of computing rows at the experts here, for any rank; those rows; the number of experts' weights that
// they used, counted per layer and step. Excludes waits and this rank's attention. Any thread.
void cm_group_work(const cm_engine* engine, int64_t* work);
// sessions: [4] rounds of this rank's sessions, one per layer and micro-batch; ns from asking until the rank that answers
// last takes the ask (A2E), of its computing (experts), and from then until the results are added (E2A). Without rounds
// that a rank of another host has answered. Any thread.
void cm_group_sessions(const cm_engine* engine, int64_t* sessions);
// The rank that this one is waiting for, or -1; and for how long. Any thread.
int32_t cm_group_awaits(const cm_engine* engine, int64_t* ns);

// ---- carriers: connections of a rank to ranks of other hosts; see hardware/ub/native/carrier.h

typedef struct cm_carrier cm_carrier;
// own: the rank's window; mirror: memory formatted as the peer's, for this rank alone. Both stay until cm_carrier_close.
// The peer is lost if it sends nothing for `silence_ns`, longer than `beat_ns`, the longest time between two frames.
int32_t cm_carrier_open(void* own, void* mirror, int64_t beat_ns, int64_t silence_ns, cm_carrier** carrier);
int32_t cm_carrier_start(cm_carrier* carrier, int32_t socket);  // connected; the carrier closes it. Once
void cm_carrier_lose(cm_carrier* carrier, const char* why);     // not while another thread starts it
// Why the peer is lost, at most `bytes` with a final 0; returns the length of the whole text: 0 = it is not. Any thread.
size_t cm_carrier_lost(const cm_carrier* carrier, char* why, size_t bytes);
uint64_t cm_carrier_sent_bytes(const cm_carrier* carrier);  // any thread
void cm_carrier_close(cm_carrier* carrier);  // ends the connection: nothing of the peer is stored any more

// One product outside a step: x [rows, groups * in_features] -> y [rows, groups * out_features], both of `form`.
int32_t cm_apply(const cm_linear* linear, const void* x, int32_t rows, int32_t form, void* y, int32_t threads);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
