"""The RAM backend's table of operations over NumPy arrays, for the parity tests; compiled by `harness.py`.

Each method takes the fields of the operation's structure by name. An array stands for a pointer, None for a null pointer. Nothing
is checked here but the statuses: the tests decide what memory an operation sees.
"""
cimport numpy as cnp
from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t

from uform._ext.plugin cimport *

import numpy as np

cnp.import_array()

cdef extern from *:
    """
    #include <pthread.h>
    #include <stddef.h>

    typedef struct { size_t threads; } test_pool_t;
    typedef struct {
        size_t tasks, next;
        void (*task)(void*, size_t);
        void* state;
    } test_run_t;

    static void* test_pool_work(void* argument) {
        test_run_t* run = (test_run_t*)argument;
        for (size_t index; (index = __atomic_fetch_add(&run->next, 1, __ATOMIC_RELAXED)) < run->tasks;)
            run->task(run->state, index);
        return NULL;
    }

    /* Starts its threads for every run: the simplest pool there is. */
    static void test_pool_run(void* pool, size_t tasks, void (*task)(void*, size_t), void* state) {
        enum { most = 16 };
        pthread_t helpers[most];
        size_t started = 0, wanted = ((test_pool_t*)pool)->threads - 1;
        test_run_t run = {tasks, 0, task, state};
        while (started < wanted && started < most && !pthread_create(&helpers[started], NULL, test_pool_work, &run))
            ++started;
        test_pool_work(&run);
        for (size_t i = 0; i < started; ++i) pthread_join(helpers[i], NULL);
    }
    """
    ctypedef struct test_pool_t:
        size_t threads
    void test_pool_run(void* pool, size_t tasks, void (*task)(void*, size_t) noexcept nogil, void* state) noexcept nogil


cdef void* at(object array) except? NULL:
    """The memory of a C-contiguous array; null for None."""
    if array is None:
        return NULL
    if not isinstance(array, np.ndarray) or not array.flags.c_contiguous:
        raise TypeError("expected a contiguous array or None")
    return cnp.PyArray_DATA(array)


cdef int check(uform_status_t status) except -1:
    if status != uform_status_success_k:
        raise RuntimeError(uform_last_error().decode())
    return 0


SEGMENT = np.dtype(
    [("first", "u4"), ("columns", "u4"), ("pooled", "u4"), ("bag", "u4"), ("modality", "u2"), ("axes", "u2"),
     ("extents", "u2", 3), ("reserved", "u2")], align=True)

SPAN = np.dtype(
    [("offset", "u8"), ("count", "u8"), ("decay", "f4"), ("minimum", "f4"), ("maximum", "f4"), ("rows", "u4"),
     ("columns", "u4"), ("kind", "u4"), ("working", "u8")], align=True)

STATE = np.dtype(
    [("applied", "u8"), ("learning_rate", "f8"), ("gradient_norm", "f8"), ("terms", "f8", UFORM_TERMS_CAPACITY),
     ("refused", "u8"), ("not_finite", "u8", UFORM_FINDINGS_CAPACITY)], align=True)

if SEGMENT.itemsize != sizeof(uform_segment_t) or SPAN.itemsize != sizeof(uform_parameter_span_t) \
        or STATE.itemsize != sizeof(uform_update_state_t):
    raise ImportError("the tests' records differ from those of plugin.h")


cdef class Operations:
    """A backend with one stream a device.

    Args:
        threads: worker threads.
        devices: virtual devices.
        blas: path of a library with the CBLAS interface, or None for the plain GEMM.
    """

    cdef const uform_operations_t* table
    cdef test_pool_t workers
    cdef void* backend
    cdef uform_stream_t* streams[8]
    cdef uint32_t devices

    def __cinit__(self, size_t threads=1, uint32_t devices=1, blas=None):
        cdef uform_backend_options_t options
        cdef bytes path = b"" if blas is None else blas.encode()
        if devices > 8:
            raise ValueError("at most 8 devices")
        self.table = uform_operations_ram()
        self.workers.threads = threads
        options.parallel.pool = &self.workers
        options.parallel.run = test_pool_run
        options.blas_path = NULL
        if blas is not None:
            options.blas_path = path
        options.devices = NULL
        options.devices_count = devices
        check(self.table.backend_create(&options, &self.backend))
        for device in range(devices):
            check(self.table.stream_create(self.backend, device, &self.streams[device]))
            self.devices += 1

    def __dealloc__(self):
        for device in range(self.devices):
            self.table.stream_destroy(self.streams[device])
        if self.backend != NULL:
            self.table.backend_destroy(self.backend)

    @property
    def name(self):
        return self.table.name.decode()

    @property
    def gemm(self):
        return self.table.backend_gemm(self.backend).decode()

    # sizes

    def sizes(self, str which, *extents):
        """Bytes that an operation asks for; `which` is the slot's name, `extents` its arguments in order."""
        cdef uform_extents_t shape
        if which.startswith("layer"):
            shape.depth, shape.hidden, shape.inner, shape.heads = extents[:4]
        if which == "state_bytes":
            return self.table.state_bytes(extents[0])
        if which == "weights_bytes":
            return self.table.weights_bytes(extents[0], extents[1], extents[2])
        if which == "layer_saved_bytes":
            return self.table.layer_saved_bytes(&shape, extents[4])
        if which == "layer_workspace_bytes":
            return self.table.layer_workspace_bytes(&shape, extents[4], extents[5])
        if which == "norm_workspace_bytes":
            return self.table.norm_workspace_bytes(extents[0], extents[1])
        if which == "embedding_workspace_bytes":
            return self.table.embedding_workspace_bytes(extents[0], extents[1], extents[2])
        if which == "patches_workspace_bytes":
            return self.table.patches_workspace_bytes(extents[0], extents[1], extents[2])
        if which == "pool_workspace_bytes":
            return self.table.pool_workspace_bytes(extents[0], extents[1])
        if which == "bytes_head_workspace_bytes":
            return self.table.bytes_head_workspace_bytes(extents[0], extents[1])
        if which == "patches_head_workspace_bytes":
            return self.table.patches_head_workspace_bytes(extents[0], extents[1], extents[2])
        if which == "choices_head_workspace_bytes":
            return self.table.choices_head_workspace_bytes(extents[0], extents[1], extents[2])
        if which == "cross_entropy_workspace_bytes":
            return self.table.cross_entropy_workspace_bytes(extents[0], extents[1])
        if which == "pairs_workspace_bytes":
            return self.table.pairs_workspace_bytes(extents[0], extents[1], extents[2], extents[3], extents[4])
        if which == "update_workspace_bytes":
            return self.table.update_workspace_bytes(extents[0])
        raise KeyError(which)

    # memory: through the backend's own block and back

    def copy_through(self, cnp.ndarray values):
        """Uploads the bytes, downloads them, zeroes the block and downloads again; answers both."""
        cdef void* memory = NULL
        cdef size_t count = values.nbytes
        back, zeros = np.empty_like(values), np.empty_like(values)
        check(self.table.memory_allocate(self.streams[0], count, &memory))
        aligned = <uintptr_t>memory % 64 == 0
        check(self.table.memory_upload(self.streams[0], memory, at(values), count))
        check(self.table.memory_download(self.streams[0], at(back), memory, count))
        check(self.table.memory_zero(self.streams[0], memory, count))
        check(self.table.memory_copy(self.streams[0], at(zeros), memory, count))
        check(self.table.device_synchronize(self.streams[0]))
        check(self.table.stream_synchronize(self.streams[0]))
        self.table.memory_release(self.streams[0], memory)
        return back, zeros, aligned

    # columns

    cdef uform_columns_t columns_of(self, dict fields) except *:
        cdef uform_columns_t c
        c.capacity = fields["capacity"]
        c.active = fields["active"]
        c.segments_capacity = fields["segments_capacity"]
        c.bags_capacity = fields["bags_capacity"]
        c.longest = fields["longest"]
        c.counts = <const uint32_t*>at(fields["counts"])
        c.segments = <const uform_segment_t*>at(fields["segments"])
        c.codes = <const uint16_t*>at(fields["codes"])
        c.segment_of = <uint32_t*>at(fields["segment_of"])
        c.positions = <uint16_t*>at(fields["positions"])
        return c

    def columns_expand(self, dict columns):
        cdef uform_columns_t c = self.columns_of(columns)
        check(self.table.columns_expand(self.streams[0], &c))

    def embedding(self, str which, dict columns, **k):
        cdef uform_embedding_t e
        e.columns = self.columns_of(columns)
        e.hidden = k["hidden"]
        e.modality = k["modality"]
        e.table_rows = k["table_rows"]
        e.table = at(k.get("table"))
        e.table_gradient = <float*>at(k.get("table_gradient"))
        e.states = at(k.get("states"))
        e.gradient = at(k.get("gradient"))
        e.workspace = at(k["workspace"])
        e.workspace_bytes = k["workspace"].nbytes
        if which == "forward":
            check(self.table.embedding_forward(self.streams[0], &e))
        else:
            check(self.table.embedding_backward(self.streams[0], &e))

    def patches(self, str which, dict columns, **k):
        cdef uform_patches_t p
        p.columns = self.columns_of(columns)
        p.hidden = k["hidden"]
        p.width = k["width"]
        p.element = k["element"]
        p.multiplier = k["multiplier"]
        p.offset = k["offset"]
        p.capacity = k["capacity"]
        p.active = k["active"]
        p.count = <const uint32_t*>at(k["count"])
        p.values = at(k["values"])
        p.patch_columns = <const uint32_t*>at(k["patch_columns"])
        p.weight = at(k.get("weight"))
        p.weight_gradient = <float*>at(k.get("weight_gradient"))
        p.states = at(k.get("states"))
        p.gradient = at(k.get("gradient"))
        p.workspace = at(k["workspace"])
        p.workspace_bytes = k["workspace"].nbytes
        if which == "forward":
            check(self.table.patches_forward(self.streams[0], &p))
        else:
            check(self.table.patches_backward(self.streams[0], &p))

    # the encoder's block

    def layer(self, str which, dict columns, **k):
        """All five operations of the block's forward or backward, in the encoder's order."""
        cdef uform_layer_t l
        cdef uform_stream_t* stream = self.streams[0]
        l.extents.depth, l.extents.hidden, l.extents.inner, l.extents.heads = k["extents"]
        l.columns = self.columns_of(columns)
        l.norm1 = at(k["norm1"])
        l.qkv = at(k["qkv"])
        l.out = at(k["out"])
        l.norm2 = at(k["norm2"])
        l.up = at(k["up"])
        l.down = at(k["down"])
        l.norm1_gradient = <float*>at(k.get("norm1_gradient"))
        l.qkv_gradient = <float*>at(k.get("qkv_gradient"))
        l.out_gradient = <float*>at(k.get("out_gradient"))
        l.norm2_gradient = <float*>at(k.get("norm2_gradient"))
        l.up_gradient = <float*>at(k.get("up_gradient"))
        l.down_gradient = <float*>at(k.get("down_gradient"))
        l.input = at(k["input"])
        l.output = at(k["output"])
        l.gradient = at(k.get("gradient"))
        l.saved = at(k["saved"])
        l.saved_bytes = k["saved"].nbytes
        l.workspace = at(k["workspace"])
        l.workspace_bytes = k["workspace"].nbytes
        if which == "forward":
            check(self.table.norm_qkv_forward(stream, &l))
            check(self.table.attention_forward(stream, &l))
            check(self.table.out_residual_forward(stream, &l))
            check(self.table.norm_geglu_forward(stream, &l))
            check(self.table.down_residual_forward(stream, &l))
        else:
            check(self.table.down_residual_backward(stream, &l))
            check(self.table.norm_geglu_backward(stream, &l))
            check(self.table.out_residual_backward(stream, &l))
            check(self.table.attention_backward(stream, &l))
            check(self.table.norm_qkv_backward(stream, &l))

    # after the last block

    def norm(self, str which, dict columns, **k):
        cdef uform_norm_t n
        n.columns = self.columns_of(columns)
        n.hidden = k["hidden"]
        n.gain = at(k["gain"])
        n.gain_gradient = <float*>at(k.get("gain_gradient"))
        n.input = at(k["input"])
        n.output = at(k.get("output"))
        n.inverse_rms = <float*>at(k["inverse_rms"])
        n.gradient = at(k.get("gradient"))
        n.workspace = at(k["workspace"])
        n.workspace_bytes = k["workspace"].nbytes
        if which == "forward":
            check(self.table.norm_forward(self.streams[0], &n))
        else:
            check(self.table.norm_backward(self.streams[0], &n))

    def pool(self, str which, dict columns, **k):
        cdef uform_pool_t p
        p.columns = self.columns_of(columns)
        p.hidden = k["hidden"]
        p.hidden_states = at(k.get("hidden_states"))
        p.pooled = <float*>at(k["pooled"])
        p.lengths = <float*>at(k["lengths"])
        p.bag_columns = <uint32_t*>at(k["bag_columns"])
        p.pooled_gradient = <const float*>at(k.get("pooled_gradient"))
        p.gradient = at(k.get("gradient"))
        p.accumulate = k.get("accumulate", 0)
        p.workspace = at(k["workspace"])
        p.workspace_bytes = k["workspace"].nbytes
        if which == "forward":
            check(self.table.pool_forward(self.streams[0], &p))
        else:
            check(self.table.pool_backward(self.streams[0], &p))

    def rows(self, str which, **k):
        cdef uform_rows_t r
        r.hidden = k["hidden"]
        r.capacity = k["capacity"]
        r.active = k["active"]
        r.count = <const uint32_t*>at(k["count"])
        r.indices = <const uint32_t*>at(k["indices"])
        r.states = at(k.get("states"))
        r.rows = at(k.get("rows"))
        r.rows_gradient = <const float*>at(k.get("rows_gradient"))
        r.gradient = at(k.get("gradient"))
        r.accumulate = k.get("accumulate", 0)
        r.columns_active = k["columns_active"]
        if which == "gather":
            check(self.table.rows_gather(self.streams[0], &r))
        else:
            check(self.table.rows_scatter(self.streams[0], &r))

    # element types

    def narrow(self, **k):
        cdef uform_narrow_t n
        n.width = k["width"]
        n.count = k["count"]
        n.scalar = k["scalar"]
        n.source = self.streams[self.devices - 1]
        n.from_ = <const float*>at(k["from_"])
        n.places = <const uint32_t*>at(k.get("places"))
        n.to = at(k["to"])
        n.to_bytes = k["to_bytes"]
        check(self.table.rows_narrow(self.streams[0], &n))

    def widen(self, **k):
        """`first` is the place in `from_` of the matrix's own first value."""
        cdef uform_widen_t w
        cdef size_t before = k["first"] * k["from_"].itemsize
        w.rows = k["rows"]
        w.width = k["width"]
        w.scalar = k["scalar"]
        w.row_stride = k["row_stride"]
        w.column_stride = k["column_stride"]
        w.from_ = <char*>at(k["from_"]) + before
        w.to = <float*>at(k.get("to"))
        w.not_finite = <uint64_t*>at(k["not_finite"])
        check(self.table.rows_widen(self.streams[0], &w))

    # objectives

    def bytes_head(self, **k):
        cdef uform_bytes_head_t h
        h.hidden = k["hidden"]
        h.capacity = k["capacity"]
        h.active = k["active"]
        h.first = k["first"]
        h.count = <const uint32_t*>at(k["count"])
        h.rows = at(k["rows"])
        h.table = at(k["table"])
        h.targets = <const uint8_t*>at(k["targets"])
        h.scale = <const float*>at(k["scale"])
        h.weight = <const float*>at(k["weight"])
        h.loss = <double*>at(k["loss"])
        h.rows_gradient = <float*>at(k.get("rows_gradient"))
        h.table_gradient = <float*>at(k.get("table_gradient"))
        h.workspace = at(k["workspace"])
        h.workspace_bytes = k["workspace"].nbytes
        h.before = <const uint32_t*>at(k.get("before"))
        check(self.table.bytes_head(self.streams[0], &h))

    def patches_head(self, **k):
        cdef uform_patches_head_t h
        h.hidden = k["hidden"]
        h.width = k["width"]
        h.element = k["element"]
        h.multiplier = k["multiplier"]
        h.offset = k["offset"]
        h.capacity = k["capacity"]
        h.active = k["active"]
        h.first = k["first"]
        h.count = <const uint32_t*>at(k["count"])
        h.rows = at(k["rows"])
        h.values = at(k["values"])
        h.covered_patches = <const uint32_t*>at(k["covered_patches"])
        h.head = at(k["head"])
        h.head_gradient = <float*>at(k.get("head_gradient"))
        h.scale = <const float*>at(k["scale"])
        h.weight = <const float*>at(k["weight"])
        h.loss = <double*>at(k["loss"])
        h.rows_gradient = <float*>at(k.get("rows_gradient"))
        h.workspace = at(k["workspace"])
        h.workspace_bytes = k["workspace"].nbytes
        h.before = <const uint32_t*>at(k.get("before"))
        check(self.table.patches_head(self.streams[0], &h))

    def choices_head(self, **k):
        cdef uform_choices_head_t h
        h.hidden = k["hidden"]
        h.items_capacity = k["items_capacity"]
        h.items_active = k["items_active"]
        h.rows_capacity = k["rows_capacity"]
        h.rows_active = k["rows_active"]
        h.counts = <const uint32_t*>at(k["counts"])
        h.offsets = <const uint32_t*>at(k["offsets"])
        h.rows = at(k["rows"])
        h.vector = <const float*>at(k["vector"])
        h.log_inverse_temperature = <const float*>at(k["log_inverse_temperature"])
        h.probabilities = <float*>at(k["probabilities"])
        h.targets = <const float*>at(k.get("targets"))
        h.scale = <const float*>at(k.get("scale"))
        h.weight = <const float*>at(k.get("weight"))
        h.loss = <double*>at(k.get("loss"))
        h.rows_gradient = <float*>at(k.get("rows_gradient"))
        h.vector_gradient = <float*>at(k.get("vector_gradient"))
        h.log_inverse_temperature_gradient = <float*>at(k.get("log_inverse_temperature_gradient"))
        h.workspace = at(k["workspace"])
        h.workspace_bytes = k["workspace"].nbytes
        check(self.table.choices_head(self.streams[0], &h))

    def cross_entropy(self, **k):
        cdef uform_cross_entropy_t c
        c.classes = k["classes"]
        c.count = k["count"]
        c.logits = <const float*>at(k["logits"])
        c.targets = <const uint8_t*>at(k["targets"])
        c.scale = k["scale"]
        c.loss = <double*>at(k["loss"])
        c.gradient = <float*>at(k.get("gradient"))
        c.workspace = at(k["workspace"])
        c.workspace_bytes = k["workspace"].nbytes
        check(self.table.cross_entropy(self.streams[0], &c))

    def prefix(self, str which, **k):
        cdef uform_prefix_t p
        p.stride = k["stride"]
        p.width = k["width"]
        p.normalize = k["normalize"]
        p.capacity = k["capacity"]
        p.active = k["active"]
        p.count = <const uint32_t*>at(k["count"])
        p.indices = <const uint32_t*>at(k["indices"])
        p.source = <const float*>at(k.get("source"))
        p.vectors = <float*>at(k["vectors"])
        p.lengths = <float*>at(k["lengths"])
        p.vectors_gradient = <const float*>at(k.get("vectors_gradient"))
        p.source_gradient = <float*>at(k.get("source_gradient"))
        if which == "forward":
            check(self.table.prefix_forward(self.streams[0], &p))
        else:
            check(self.table.prefix_backward(self.streams[0], &p))

    def pairs(self, str which, **k):
        cdef uform_pairs_t p
        p.width = k["width"]
        p.units_capacity = k["units_capacity"]
        p.rows_capacity = k["rows_capacity"]
        p.edges_capacity = k["edges_capacity"]
        p.units_active = k["units_active"]
        p.rows_active = k["rows_active"]
        p.groups = k["groups"]
        p.counts = <const uint32_t*>at(k["counts"])
        p.indices = <const uint32_t*>at(k.get("indices"))
        p.vectors = <const float*>at(k["vectors"])
        p.rows = <const uint32_t*>at(k["rows"])
        p.row_groups = <const uint32_t*>at(k["row_groups"])
        p.modalities = <const uint32_t*>at(k["modalities"])
        p.sides = <const uint8_t*>at(k["sides"])
        p.targets = <const uint8_t*>at(k["targets"])
        p.edge_offsets = <const uint32_t*>at(k["edge_offsets"])
        p.edge_units = <const uint32_t*>at(k["edge_units"])
        p.edge_classes = <const uint8_t*>at(k["edge_classes"])
        p.edge_weights = <const float*>at(k["edge_weights"])
        p.form = k["form"]
        p.negatives = k["negatives"]
        p.scope = k["scope"]
        p.ambient_weight = k["ambient_weight"]
        p.log_inverse_temperature = at(k["log_inverse_temperature"])
        p.bias = at(k["bias"])
        p.scale = <const float*>at(k["scale"])
        p.loss = <double*>at(k["loss"])
        p.row_losses = <float*>at(k["row_losses"])
        p.row_losses_scale = k["row_losses_scale"]
        p.row_logs = <float*>at(k["row_logs"])
        p.row_forces = <float*>at(k["row_forces"])
        p.gradient = <float*>at(k["gradient"])
        p.log_inverse_temperature_gradient = <float*>at(k["log_inverse_temperature_gradient"])
        p.bias_gradient = <float*>at(k["bias_gradient"])
        p.workspace = at(k["workspace"])
        p.workspace_bytes = k["workspace"].nbytes
        if which == "forward":
            check(self.table.pairs_forward(self.streams[0], &p))
        else:
            check(self.table.pairs_backward(self.streams[0], &p))

    # the devices of one process among themselves

    def reduce_sum(self, list buffers):
        cdef float* pointers[8]
        for device in range(self.devices):
            pointers[device] = <float*>at(buffers[device])
        check(self.table.reduce_sum(self.streams, pointers, self.devices, buffers[0].size))

    def reduce_terms(self, list buffers):
        cdef double* pointers[8]
        for device in range(self.devices):
            pointers[device] = <double*>at(buffers[device])
        check(self.table.reduce_terms(self.streams, pointers, self.devices, buffers[0].size))

    def gather(self, list sources, list targets):
        cdef const void* read[8]
        cdef void* written[8]
        for device in range(self.devices):
            read[device] = at(sources[device])
            written[device] = at(targets[device])
        check(self.table.gather(self.streams, read, written, self.devices, sources[0].nbytes))

    # the update

    def update(self, **k):
        cdef uform_update_t u
        u.count = k["count"]
        u.parameters = <float*>at(k["parameters"])
        u.gradient = <float*>at(k["gradient"])
        u.first_moment = <float*>at(k["first_moment"])
        u.second_moment = <float*>at(k["second_moment"])
        u.spans = <const uform_parameter_span_t*>at(k["spans"])
        u.spans_count = len(k["spans"])
        u.terms_count = k["terms_count"]
        u.peak, u.floor = k["peak"], k["floor"]
        u.warmup_steps, u.steps = k["warmup_steps"], k["steps"]
        u.beta1, u.beta2, u.epsilon = k["beta1"], k["beta2"], k["epsilon"]
        u.decay, u.max_norm = k["decay"], k["max_norm"]
        u.state = <uform_update_state_t*>at(k["state"])
        u.workspace = at(k["workspace"])
        u.workspace_bytes = k["workspace"].nbytes
        check(self.table.update(self.streams[0], &u))
