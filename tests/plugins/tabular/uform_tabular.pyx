# cython: language_level=3
"""Tabular rows as a modality: `float32` [rows, fields] or [fields], a column a row, which a linear map embeds.

    trainer = uform.Trainer.init_ram(executor, plugins={"tabular": {"fields": 4}}, ...)
    trainer.step([uform_tabular.TABULAR, uform.Modality.TEXT], [rows, "a text"], ...)

Where the objective masks, a share `mask_ratio` of the rows of a table is covered, one is left, and a linear head
predicts the values of each, normalised by their own mean and variance. `mask_weight` is what that counts.
"""

from cpython.pycapsule cimport PyCapsule_New
from libc.math cimport fmax, isfinite
from libc.stddef cimport size_t
from libc.stdint cimport INT32_MAX, int32_t, uint8_t, uint32_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from uform._ext.plugin cimport *

cdef enum:
    NUMBER = 16
    MARKER = 0
    MASK = 1
    TABLE_ROWS = 2

# What `Trainer.step` takes for a content of this modality.
TABULAR = <int>NUMBER


cdef struct Config:
    double mask_ratio
    double mask_weight
    int32_t fields


cdef struct State:
    uint32_t fields
    uint32_t capacity
    # handles of parameters
    uint32_t table
    uint32_t weight
    uint32_t head
    # offsets into staging: the count of rows on the device, their values, the column of each, and which are covered
    size_t count
    size_t values
    size_t columns
    size_t covered
    # and into the workspace, of one operation at a time
    size_t workspace
    size_t workspace_bytes


cdef uform_field_t[3] FIELDS
FIELDS[0].name = b"fields"
FIELDS[0].type = uform_field_type_int32_k
FIELDS[0].offset = 2 * sizeof(double)
FIELDS[1].name = b"mask_ratio"
FIELDS[1].type = uform_field_type_double_k
FIELDS[1].offset = 0
FIELDS[2].name = b"mask_weight"
FIELDS[2].type = uform_field_type_double_k
FIELDS[2].offset = sizeof(double)


cdef uform_status_t derive(void* given, const uform_run_t* run, const uform_declare_t* declare,
                           uint32_t* enabled) noexcept nogil:
    cdef char[96] message
    cdef Config* config = <Config*>given
    enabled[0] = 1
    if not 1 <= config.fields <= 4096:
        snprintf(message, sizeof(message), "fields: between 1 and 4096 values a row, not %d", <int>config.fields)
        return declare.fail(declare.host, uform_status_invalid_argument_k, message)
    # Zeros derive, and what is negative asks for a true zero.
    if config.mask_ratio > 1:
        snprintf(message, sizeof(message), "mask_ratio: at most 1, or negative for none, not %g", config.mask_ratio)
        return declare.fail(declare.host, uform_status_invalid_argument_k, message)
    config.mask_ratio = 0.5 if config.mask_ratio == 0 else config.mask_ratio
    config.mask_weight = 1 if config.mask_weight == 0 else config.mask_weight
    return uform_status_success_k


cdef uform_status_t create(const void* given, const uform_run_t* run, const uform_declare_t* declare,
                           void** made) noexcept nogil:
    cdef State* self = <State*>calloc(1, sizeof(State))
    if self == NULL:
        return declare.fail(declare.host, uform_status_out_of_memory_k, "the host has no memory left")
    self.fields = (<const Config*>given).fields
    self.capacity = run.columns_capacity
    cdef const Config* config = <const Config*>given
    cdef uform_status_t status = declare_parameters(self, run, declare)
    if status == uform_status_success_k:
        status = declare_memory(self, run, declare)
    if status == uform_status_success_k and run.training:
        status = declare.cover(declare.host, fmax(config.mask_ratio, 0), fmax(config.mask_weight, 0))
    if status == uform_status_success_k:
        made[0] = self
    else:
        free(self)
    return status


cdef uform_status_t declare_parameters(State* self, const uform_run_t* run,
                                       const uform_declare_t* declare) noexcept nogil:
    cdef uform_parameter_request_t table, weight, head
    cdef uform_status_t status
    memset(&table, 0, sizeof(table))
    table.name = "table"
    table.rows = TABLE_ROWS
    table.columns = run.hidden
    table.kind = uform_parameter_kind_embedding_k
    table.deviation = 0.02
    status = declare.parameter(declare.host, &table, &self.table)
    if status != uform_status_success_k:
        return status
    weight = table
    weight.name = "weight"
    weight.rows = run.hidden
    weight.columns = self.fields
    weight.kind = uform_parameter_kind_matrix_k
    status = declare.parameter(declare.host, &weight, &self.weight)
    if status != uform_status_success_k or not run.training:
        return status
    head = weight
    head.name = "head"
    head.rows = self.fields
    head.columns = run.hidden
    return declare.parameter(declare.host, &head, &self.head)


cdef uform_status_t declare_memory(State* self, const uform_run_t* run, const uform_declare_t* declare) noexcept nogil:
    cdef const uform_operations_t* operations = declare.operations
    cdef size_t embedding = operations.embedding_workspace_bytes(run.hidden, TABLE_ROWS, self.capacity)
    cdef size_t patches = operations.patches_workspace_bytes(run.hidden, self.fields, self.capacity)
    cdef uform_status_t status = declare.staging(declare.host, sizeof(uint32_t), &self.count)
    if status == uform_status_success_k:
        status = declare.column_staging(declare.host, uform_staging_unit_content_k, sizeof(float) * self.fields,
                                        &self.values)
    if status == uform_status_success_k:
        status = declare.column_staging(declare.host, uform_staging_unit_content_k, sizeof(uint32_t), &self.columns)
    self.workspace_bytes = embedding if embedding > patches else patches
    cdef size_t predicting
    if run.training:
        predicting = operations.patches_head_workspace_bytes(run.hidden, self.fields, self.capacity)
        self.workspace_bytes = predicting if predicting > self.workspace_bytes else self.workspace_bytes
        if status == uform_status_success_k:
            status = declare.column_staging(declare.host, uform_staging_unit_covered_k, sizeof(uint32_t),
                                            &self.covered)
    if status == uform_status_success_k:
        status = declare.workspace(declare.host, self.workspace_bytes, &self.workspace)
    return status


cdef void destroy(void* self) noexcept nogil:
    free(self)


cdef inline uint32_t rows_of(const uform_content_t* content) noexcept nogil:
    return <uint32_t>content.extents[0] if content.rank == 2 else 1


cdef inline float cell(const uform_content_t* content, size_t row, size_t field) noexcept nogil:
    cdef const char* data = <const char*>content.data
    if content.rank == 2:
        return (<const float*>(data + row * content.strides[0] + field * content.strides[1]))[0]
    return (<const float*>(data + field * content.strides[0]))[0]


cdef uform_status_t measure(void* opaque, const uform_content_t* content, uint32_t limit, uform_measure_t* measured,
                            char* message, size_t message_bytes) noexcept nogil:
    cdef State* self = <State*>opaque
    cdef size_t row, field
    if content.rank < 1 or content.rank > 2 or content.element != uform_element_float32_k:
        snprintf(message, message_bytes, "tabular rows are float32 [rows, fields] or [fields]")
        return uform_status_invalid_argument_k
    if content.extents[content.rank - 1] != self.fields or content.rank == 2 and content.extents[0] > INT32_MAX:
        snprintf(message, message_bytes, "its rows have %llu fields, the run's %u",
                 <unsigned long long>content.extents[content.rank - 1], self.fields)
        return uform_status_invalid_argument_k
    measured.columns = rows_of(content)
    measured.truncated = measured.columns > limit
    if measured.truncated:
        measured.columns = limit
    for row in range(measured.columns):
        for field in range(self.fields):
            if not isfinite(cell(content, row, field)):
                snprintf(message, message_bytes, "field %zu of row %zu is not finite", field, row)
                return uform_status_invalid_argument_k
    measured.axes = 1
    measured.extents[0] = measured.columns
    measured.whole[0] = measured.columns  # each may be covered
    return uform_status_success_k


cdef uform_status_t fill(void* opaque, const uform_fill_t* fill) noexcept nogil:
    cdef State* self = <State*>opaque
    cdef float* values = <float*>(fill.staging + self.values) + <size_t>fill.before * self.fields
    cdef uint32_t* columns = <uint32_t*>(fill.staging + self.columns) + fill.before
    cdef size_t row, field
    fill.codes[0] = MARKER
    for row in range(fill.measure.columns):
        fill.codes[1 + row] = UFORM_CODE_VALUES
        columns[row] = fill.segment.first + 1 + row
        for field in range(self.fields):
            values[row * self.fields + field] = cell(fill.content, row, field)
    return uform_status_success_k


cdef uform_status_t cover(void* opaque, const uform_cover_t* cover) noexcept nogil:
    cdef uint32_t* covered = <uint32_t*>(cover.staging + (<State*>opaque).covered) + cover.covered
    cdef uint32_t index
    for index in range(cover.count):
        covered[index] = cover.before + cover.places[index]
        if cover.actions[index] != uform_cover_action_stay_k:
            cover.codes[1 + cover.places[index]] = MASK
    return uform_status_success_k


cdef uform_status_t finish(void* opaque, uint32_t device, uint8_t* staging, uint32_t columns,
                           uint32_t covered) noexcept nogil:
    (<uint32_t*>(staging + (<State*>opaque).count))[0] = columns
    return uform_status_success_k


cdef uform_embedding_t embedding_of(const State* self, const uform_pass_t* step) noexcept nogil:
    """The table's rows of markers and of masks."""
    cdef uform_embedding_t embedding
    memset(&embedding, 0, sizeof(embedding))
    embedding.columns = step.columns
    embedding.hidden = step.run.hidden
    embedding.modality = NUMBER
    embedding.table_rows = TABLE_ROWS
    embedding.table = step.weights[self.table]
    embedding.states = step.states
    embedding.gradient = step.states_gradient
    embedding.workspace = step.workspace + self.workspace
    embedding.workspace_bytes = self.workspace_bytes
    return embedding


cdef uform_patches_t patches_of(const State* self, const uform_pass_t* step) noexcept nogil:
    """The linear map of all rows at once."""
    cdef uform_patches_t patches
    memset(&patches, 0, sizeof(patches))
    patches.columns = step.columns
    patches.hidden = step.run.hidden
    patches.width = self.fields
    patches.element = uform_element_float32_k
    patches.multiplier = 1
    patches.capacity = self.capacity
    patches.active = step.columns.active
    patches.count = <const uint32_t*>(step.staging + self.count)
    patches.values = step.staging + self.values
    patches.patch_columns = <const uint32_t*>(step.staging + self.columns)
    patches.weight = step.weights[self.weight]
    patches.states = step.states
    patches.gradient = step.states_gradient
    patches.workspace = step.workspace + self.workspace
    patches.workspace_bytes = self.workspace_bytes
    return patches


cdef uform_status_t embed_forward(void* opaque, const uform_pass_t* step) noexcept nogil:
    cdef uform_embedding_t embedding = embedding_of(<State*>opaque, step)
    cdef uform_patches_t patches = patches_of(<State*>opaque, step)
    cdef uform_status_t status = step.operations.patches_forward(step.stream, &patches)
    if status == uform_status_success_k:
        status = step.operations.embedding_forward(step.stream, &embedding)
    return status


cdef uform_status_t embed_backward(void* opaque, const uform_pass_t* step) noexcept nogil:
    cdef State* self = <State*>opaque
    cdef uform_embedding_t embedding = embedding_of(self, step)
    cdef uform_patches_t patches = patches_of(self, step)
    embedding.table_gradient = step.gradients[self.table]
    patches.weight_gradient = step.gradients[self.weight]
    cdef uform_status_t status = step.operations.patches_backward(step.stream, &patches)
    if status == uform_status_success_k:
        status = step.operations.embedding_backward(step.stream, &embedding)
    return status


cdef uform_status_t reconstruct(void* opaque, const uform_pass_t* step,
                                const uform_reconstruction_t* covered) noexcept nogil:
    cdef State* self = <State*>opaque
    cdef uform_patches_head_t head
    memset(&head, 0, sizeof(head))
    head.hidden = step.run.hidden
    head.width = self.fields
    head.element = uform_element_float32_k
    head.multiplier = 1
    head.capacity = covered.capacity
    head.active = covered.active
    head.first = covered.first
    head.before = covered.before
    head.count = covered.count
    head.rows = covered.rows
    head.rows_gradient = covered.rows_gradient
    head.values = step.staging + self.values
    head.covered_patches = <const uint32_t*>(step.staging + self.covered)
    head.head = step.weights[self.head]
    if covered.rows_gradient != NULL:
        head.head_gradient = step.gradients[self.head]
    head.scale = covered.scale
    head.weight = covered.weight
    head.loss = covered.term
    head.workspace = step.workspace + self.workspace
    head.workspace_bytes = self.workspace_bytes
    return step.operations.patches_head(step.stream, &head)


cdef uform_modality_plugin_t PLUGIN
memset(&PLUGIN, 0, sizeof(PLUGIN))
PLUGIN.abi_version = UFORM_PLUGIN_ABI_VERSION
PLUGIN.bytes = sizeof(PLUGIN)
PLUGIN.name = b"tabular"
PLUGIN.modality = NUMBER
PLUGIN.cover_kind = uform_cover_kind_spans_k
PLUGIN.fields = FIELDS
PLUGIN.fields_count = 3
PLUGIN.config_bytes = sizeof(Config)
PLUGIN.derive = derive
PLUGIN.create = create
PLUGIN.destroy = destroy
PLUGIN.measure = measure
PLUGIN.fill = fill
PLUGIN.cover = cover
PLUGIN.finish = finish
PLUGIN.embed_forward = embed_forward
PLUGIN.embed_backward = embed_backward
PLUGIN.reconstruct = reconstruct
PLUGIN.capturable = 1

plugin = PyCapsule_New(&PLUGIN, "uform_modality_plugin_t", NULL)
