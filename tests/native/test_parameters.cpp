// The table of a run's parameters: places in the flat buffers, names, and what it refuses.
#include "core/parameters.h"

#include <limits>
#include <string>
#include <utility>

#include "check.h"
#include "core/error.h"

using namespace uform;

namespace {

parameter named(std::string name, uint32_t rows, uint32_t columns = 0) {
    parameter made{};
    made.name = std::move(name);
    made.rows = rows;
    made.columns = columns;
    made.kind = columns ? uform_parameter_kind_matrix_k : uform_parameter_kind_vector_k;
    return made;
}

uform_status_t refusal(parameter_table& table, parameter asked, std::string const& part) {
    try {
        table.add(std::move(asked));
    } catch (error const& failure) {
        CHECK(failure.message.find(part) != std::string::npos);
        return failure.status;
    }
    return uform_status_success_k;
}

void test_places() {
    parameter_table table;
    CHECK(table.add(named("first", 3)) == 0 && table.add(named("second", 5, 7)) == 1 &&
          table.add(named("third", 1)) == 2);
    CHECK(table.at(0).offset == 0 && table.at(1).offset == 16 && table.at(2).offset == 64);
    CHECK(table.flat() == 80 && table.trained() == 39);
    CHECK(table.find("second") == &table.all()[1] && !table.find("fourth"));
}

void test_refuses() {
    parameter_table table;
    table.add(named("first", 3));
    CHECK(refusal(table, named("first", 3), "first: the name is taken") == uform_status_invalid_argument_k);
    CHECK(refusal(table, named("empty", 0), "empty: it has no rows") == uform_status_invalid_argument_k);
    constexpr uint32_t most = std::numeric_limits<uint32_t>::max();
    CHECK(refusal(table, named("huge", most, most), "address space") == uform_status_out_of_memory_k);
    // One after another they must not pass what offsets in bytes can count either.
    uform_status_t status = uform_status_success_k;
    int added = 0;
    for (; status == uform_status_success_k && added != 100; ++added)
        status = refusal(table, named("large" + std::to_string(added), most, 1u << 20), "address space");
    CHECK(status == uform_status_out_of_memory_k && added == 17);
    CHECK(table.flat() < (uint64_t(1) << 56) && !table.find("huge") && table.find("large0"));
}

} // namespace

int main() {
    test_places();
    test_refuses();
    return native_test::report();
}
