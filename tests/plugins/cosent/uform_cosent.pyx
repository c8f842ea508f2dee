# cython: language_level=3
"""CoSENT as an objective: of two pairs, the one of higher weight must have the higher cosine.

    trainer = uform.Trainer.init_ram(executor, plugins={"cosent": {"scale": 20.0}}, ...)
    trainer.step(..., relations=uform.Relations(attract=(offsets, ids, weights)))

The loss is log(1 + sum of exp(scale * (cosine_q - cosine_p))) over pairs p, q of a step where p weighs more than q
(Su, 2022). A repelled pair counts as one of minus its weight. It is reported as `stats.extra["cosent"]`.
"""

from cpython.pycapsule cimport PyCapsule_New
from libc.math cimport exp, isfinite, log1p
from libc.stddef cimport size_t
from libc.stdint cimport UINT32_MAX, int32_t, uint8_t, uint32_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, malloc, qsort
from libc.string cimport memset

from uform._ext.plugin cimport *

cdef extern from "kernel.h" nogil:
    ctypedef struct cosent_t:
        uint32_t width
        uint32_t pairs_capacity
        uint32_t bags_capacity
        const uint32_t* counts
        const uint32_t* left
        const uint32_t* right
        const uint32_t* first
        const uint32_t* past
        const uint32_t* bags
        const uint32_t* starts
        const uint32_t* touching
        const float* factor
        float weight
        float scale
        const float* vectors
        float* gradient
        float* scores
        float* forces
        double* term

    const char* cosent_launch(const cosent_t* problem, int device, void* stream)

cdef enum:
    MOST_PAIRS = 4096  # whose running sums a GPU's block holds
    PAIRS_COUNTER = 0


cdef struct Config:
    double weight
    double scale
    int32_t max_pairs


cdef struct Pair:
    uint32_t left
    uint32_t right
    float weight
    uint32_t place


cdef struct State:
    Config config
    uint32_t pairs_capacity
    uint32_t bags_capacity
    uint32_t term
    # offsets into staging
    size_t counts
    size_t left
    size_t right
    size_t first
    size_t past
    size_t bags
    size_t starts
    size_t touching
    size_t factor
    # and into the workspace
    size_t scores
    size_t forces
    int32_t gpu  # -1 until it is asked for
    # of the step that is planned
    uint32_t pairs
    Pair* sorted
    uint32_t* bag_of  # [slots] the place among the bags of each, UINT32_MAX: no pair names it
    uint32_t slots


cdef uform_field_t[3] FIELDS
FIELDS[0].name = b"weight"
FIELDS[0].type = uform_field_type_double_k
FIELDS[0].offset = 0
FIELDS[1].name = b"scale"
FIELDS[1].type = uform_field_type_double_k
FIELDS[1].offset = sizeof(double)
FIELDS[2].name = b"max_pairs"
FIELDS[2].type = uform_field_type_int32_k
FIELDS[2].offset = 2 * sizeof(double)


# ------------------------------------------------------------------------------------------------ before a run's steps


cdef uform_status_t derive(void* given, const uform_run_t* run, const uform_declare_t* declare) noexcept nogil:
    cdef Config* config = <Config*>given
    cdef char[128] message
    if config.weight == 0:
        config.weight = 1
    if config.scale == 0:
        config.scale = 20
    if config.max_pairs == 0:
        config.max_pairs = MOST_PAIRS
    message[0] = 0
    if not isfinite(config.weight):
        snprintf(message, sizeof(message), "weight: a finite number, not %g", config.weight)
    elif not 0 < config.scale <= 300:
        snprintf(message, sizeof(message), "scale: above 0, at most 300, not %g", config.scale)
    elif not 1 <= config.max_pairs <= MOST_PAIRS:
        snprintf(message, sizeof(message), "max_pairs: between 1 and %d, not %d", <int>MOST_PAIRS,
                 <int>config.max_pairs)
    if message[0] == 0:
        return uform_status_success_k
    return declare.fail(declare.host, uform_status_invalid_argument_k, message)


cdef uform_status_t create(const void* given, const uform_run_t* run, const uform_declare_t* declare,
                           void** made) noexcept nogil:
    cdef State* self = <State*>calloc(1, sizeof(State))
    cdef uform_status_t status
    if self == NULL:
        return declare.fail(declare.host, uform_status_out_of_memory_k, "the host has no memory left")
    self.config = (<const Config*>given)[0]
    self.gpu = -1
    self.pairs_capacity = self.config.max_pairs
    self.slots = run.world_devices * run.bags_capacity
    self.bags_capacity = min(self.slots, 2 * self.pairs_capacity)
    self.sorted = <Pair*>malloc(sizeof(Pair) * self.pairs_capacity)
    self.bag_of = <uint32_t*>malloc(sizeof(uint32_t) * self.slots)
    if self.sorted == NULL or self.bag_of == NULL:
        status = declare.fail(declare.host, uform_status_out_of_memory_k, "the host has no memory left")
    else:
        status = declare_all(self, declare)
    if status == uform_status_success_k:
        made[0] = self
    else:
        destroy(self)
    return status


cdef uform_status_t declare_all(State* self, const uform_declare_t* declare) noexcept nogil:
    cdef uform_status_t status = declare.term(declare.host, "cosent", self.config.weight, &self.term)
    cdef size_t pairs = sizeof(uint32_t) * <size_t>self.pairs_capacity
    cdef size_t bags = sizeof(uint32_t) * (<size_t>self.bags_capacity + 1)
    cdef size_t[9] bytes = [2 * sizeof(uint32_t), sizeof(float), pairs, pairs, pairs, pairs, bags, bags, 2 * pairs]
    cdef (size_t*)[9] offsets = [&self.counts, &self.factor, &self.left, &self.right, &self.first, &self.past,
                                 &self.bags, &self.starts, &self.touching]
    cdef size_t part
    for part in range(9):
        if status == uform_status_success_k:
            status = declare.staging(declare.host, bytes[part], offsets[part])
    if status == uform_status_success_k:
        status = declare.workspace(declare.host, pairs, &self.scores)
    if status == uform_status_success_k:
        status = declare.workspace(declare.host, pairs, &self.forces)
    return status


cdef void destroy(void* opaque) noexcept nogil:
    cdef State* self = <State*>opaque
    free(self.sorted)
    free(self.bag_of)
    free(self)


cdef size_t covered_capacity(void* opaque) noexcept nogil:
    return 0


# ------------------------------------------------------------------------------------------------ a step on the host


cdef int by_falling_weight(const void* opaque_one, const void* opaque_other) noexcept nogil:
    cdef const Pair* one = <const Pair*>opaque_one
    cdef const Pair* other = <const Pair*>opaque_other
    if one.weight != other.weight:
        return -1 if one.weight > other.weight else 1
    return -1 if one.place < other.place else 1


cdef uform_status_t plan(void* opaque, const uform_plan_t* step, uint32_t stage) noexcept nogil:
    """Stage 0 takes this call's pairs, stage 1 knows how many the world has, and fills the first device's staging."""
    cdef State* self = <State*>opaque
    cdef uform_status_t status
    if stage == 0:
        status = take_pairs(self, step)
        if status == uform_status_success_k:
            status = step.count(step.host, PAIRS_COUNTER, self.pairs)
        return status
    fill_pairs(self, step.devices[0].staging)
    fill_bags(self, step.devices[0].staging)
    cdef double everywhere = step.counted(step.host, PAIRS_COUNTER)
    (<float*>(step.devices[0].staging + self.factor))[0] = self.pairs / everywhere if everywhere > 0 else 0
    return uform_status_success_k


cdef uform_status_t take_pairs(State* self, const uform_plan_t* step) noexcept nogil:
    cdef uform_pair_rows_t given
    cdef uform_status_t status = step.pairs(step.host, 1, &given)
    cdef char[128] message
    cdef uint32_t row, place
    cdef Pair* pair
    if status != uform_status_success_k:
        return status
    self.pairs = 0
    for row in range(given.units):
        if step.bags[row].device == UINT32_MAX:
            continue
        for place in range(given.offsets[row], given.offsets[row + 1]):
            if given.classes[place] == uform_pair_class_ignored_k:
                continue
            if step.bags[given.candidates[place]].device == UINT32_MAX:
                continue
            if self.pairs == self.pairs_capacity:
                snprintf(message, sizeof(message), "relations: the step has more than %u pairs, which max_pairs allows",
                         self.pairs_capacity)
                return step.fail(step.host, uform_status_invalid_argument_k, message)
            pair = &self.sorted[self.pairs]
            pair.left = step.bags[row].slot
            pair.right = step.bags[given.candidates[place]].slot
            pair.weight = given.weights[place]
            if given.classes[place] == uform_pair_class_repelled_k:
                pair.weight = -pair.weight
            pair.place = self.pairs
            self.pairs += 1
    qsort(self.sorted, self.pairs, sizeof(Pair), by_falling_weight)
    return uform_status_success_k


cdef void fill_pairs(State* self, uint8_t* staging) noexcept nogil:
    cdef uint32_t* left = <uint32_t*>(staging + self.left)
    cdef uint32_t* right = <uint32_t*>(staging + self.right)
    cdef uint32_t* first = <uint32_t*>(staging + self.first)
    cdef uint32_t* past = <uint32_t*>(staging + self.past)
    cdef uint32_t begin = 0, end = 0, pair
    while begin != self.pairs:
        while end != self.pairs and self.sorted[end].weight == self.sorted[begin].weight:
            end += 1
        for pair in range(begin, end):
            left[pair], right[pair] = self.sorted[pair].left, self.sorted[pair].right
            first[pair], past[pair] = begin, end
        begin = end


cdef void fill_bags(State* self, uint8_t* staging) noexcept nogil:
    """By bag, the pairs that name it, in their order."""
    cdef uint32_t* counts = <uint32_t*>(staging + self.counts)
    cdef uint32_t* bags = <uint32_t*>(staging + self.bags)
    cdef uint32_t* starts = <uint32_t*>(staging + self.starts)
    cdef uint32_t* touching = <uint32_t*>(staging + self.touching)
    cdef uint32_t slot, pair, bag, side, known = 0
    cdef uint32_t[2] ends
    for slot in range(self.slots):
        self.bag_of[slot] = UINT32_MAX
    memset(starts, 0, sizeof(uint32_t) * (self.bags_capacity + 1))
    for pair in range(self.pairs):
        ends[0], ends[1] = self.sorted[pair].left, self.sorted[pair].right
        for side in range(2):
            if self.bag_of[ends[side]] == UINT32_MAX:
                self.bag_of[ends[side]] = known
                bags[known] = ends[side]
                known += 1
            starts[self.bag_of[ends[side]]] += 1
    # Ends of the bags' stretches now, beginnings once every pair has been put before them, the last first.
    for bag in range(1, known + 1):
        starts[bag] += starts[bag - 1]
    for pair in range(self.pairs, 0, -1):
        ends[0], ends[1] = self.sorted[pair - 1].left, self.sorted[pair - 1].right
        for side in range(2):
            bag = self.bag_of[ends[side]]
            starts[bag] -= 1
            touching[starts[bag]] = pair - 1
    starts[known] = 2 * self.pairs
    counts[0], counts[1] = self.pairs, known


# ---------------------------------------------------------------------------------------------- a step on the device


cdef uform_status_t forward_backward(void* opaque, const uform_pass_t* step) noexcept nogil:
    """The process's first device does it, for all of this call's pairs."""
    cdef State* self = <State*>opaque
    cdef uform_status_t status = uform_status_success_k
    cdef cosent_t problem
    cdef const char* refused
    if step.device != 0:
        return uform_status_success_k
    problem = problem_of(self, step)
    if step.operations.host_memory:
        score(&problem)
        return uform_status_success_k
    if self.gpu < 0:
        status = step.operations.memory_device(step.stream, step.world_bags, &self.gpu)
    if status != uform_status_success_k:
        return status
    refused = cosent_launch(&problem, self.gpu, step.operations.stream_handle(step.stream))
    if refused == NULL:
        return uform_status_success_k
    return step.fail(step.host, uform_status_device_k, refused)


cdef cosent_t problem_of(const State* self, const uform_pass_t* step) noexcept nogil:
    cdef cosent_t problem
    problem.width = step.run.hidden
    problem.pairs_capacity = self.pairs_capacity
    problem.bags_capacity = self.bags_capacity
    problem.counts = <const uint32_t*>(step.staging + self.counts)
    problem.left = <const uint32_t*>(step.staging + self.left)
    problem.right = <const uint32_t*>(step.staging + self.right)
    problem.first = <const uint32_t*>(step.staging + self.first)
    problem.past = <const uint32_t*>(step.staging + self.past)
    problem.bags = <const uint32_t*>(step.staging + self.bags)
    problem.starts = <const uint32_t*>(step.staging + self.starts)
    problem.touching = <const uint32_t*>(step.staging + self.touching)
    problem.factor = <const float*>(step.staging + self.factor)
    problem.weight = self.config.weight
    problem.scale = self.config.scale
    problem.vectors = step.world_bags
    problem.gradient = step.world_bags_gradient if step.backward else NULL
    problem.scores = <float*>(step.workspace + self.scores)
    problem.forces = <float*>(step.workspace + self.forces)
    problem.term = step.terms[self.term]
    return problem


cdef void score(const cosent_t* problem) noexcept nogil:
    """What the kernels do, in RAM: the pairs come by falling weight, so running sums do."""
    cdef uint32_t pairs = problem.counts[0], group = 0, pair
    cdef double high = 0, low = 0, total = 0, pull
    for pair in range(pairs):
        problem.scores[pair] = dot(problem, pair)
    for pair in range(pairs):
        while group != problem.first[pair]:
            high += exp(-<double>problem.scale * problem.scores[group])
            group += 1
        total += exp(<double>problem.scale * problem.scores[pair]) * high
    pull = <double>problem.factor[0] * problem.weight * problem.scale / (1 + total)
    problem.term[0] += problem.factor[0] * log1p(total)
    if problem.gradient == NULL:
        return
    high, group = 0, 0
    for pair in range(pairs):
        while group != problem.first[pair]:
            high += exp(-<double>problem.scale * problem.scores[group])
            group += 1
        problem.forces[pair] = <float>(pull * exp(<double>problem.scale * problem.scores[pair]) * high)
    group = pairs
    for pair in range(pairs, 0, -1):
        while group != problem.past[pair - 1]:
            group -= 1
            low += exp(<double>problem.scale * problem.scores[group])
        problem.forces[pair - 1] -= <float>(pull * exp(-<double>problem.scale * problem.scores[pair - 1]) * low)
    for pair in range(pairs):
        move(problem, problem.left[pair], problem.right[pair], problem.forces[pair])
        move(problem, problem.right[pair], problem.left[pair], problem.forces[pair])


cdef float dot(const cosent_t* problem, uint32_t pair) noexcept nogil:
    cdef const float* left = problem.vectors + <size_t>problem.left[pair] * problem.width
    cdef const float* right = problem.vectors + <size_t>problem.right[pair] * problem.width
    cdef double sum = 0
    cdef uint32_t column
    for column in range(problem.width):
        sum += <double>left[column] * right[column]
    return <float>sum


cdef void move(const cosent_t* problem, uint32_t bag, uint32_t other, float force) noexcept nogil:
    cdef float* gradient = problem.gradient + <size_t>bag * problem.width
    cdef const float* vector = problem.vectors + <size_t>other * problem.width
    cdef uint32_t column
    for column in range(problem.width):
        gradient[column] += force * vector[column]


# ------------------------------------------------------------------------------------------------------ registration


cdef uform_objective_plugin_t PLUGIN
memset(&PLUGIN, 0, sizeof(PLUGIN))
PLUGIN.abi_version = UFORM_PLUGIN_ABI_VERSION
PLUGIN.bytes = sizeof(PLUGIN)
PLUGIN.name = b"cosent"
PLUGIN.taps = uform_tap_world_bags_k
PLUGIN.capturable = 1
PLUGIN.fields = FIELDS
PLUGIN.fields_count = 3
PLUGIN.config_bytes = sizeof(Config)
PLUGIN.derive = derive
PLUGIN.create = create
PLUGIN.destroy = destroy
PLUGIN.covered_capacity = covered_capacity
PLUGIN.plan = plan
PLUGIN.forward_backward = forward_backward

plugin = PyCapsule_New(&PLUGIN, "uform_objective_plugin_t", NULL)
