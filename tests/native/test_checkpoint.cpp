// Foreign and damaged checkpoints through the C API: a refusal that names the file, or a run; never more than that.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "check.h"
#include "problem.h"

using namespace native_test;
using namespace std::string_view_literals;

namespace {

std::string read_file(std::string const& path) {
    std::ifstream stream(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
}

/** A file's header and data apart. */
struct parts_t {
    std::string header, data;

    explicit parts_t(std::string const& content) {
        uint64_t length = 0;
        std::memcpy(&length, content.data(), sizeof(length));
        header = content.substr(sizeof(length), length);
        data = content.substr(sizeof(length) + length);
    }
};

/** Writes over the beginning of a file only, since most of it stays the same from one try to the next. */
class damaged_file {
public:
    explicit damaged_file(std::string path) : path_(std::move(path)) {}

    std::string const& path() const { return path_; }

    void write(std::string const& header, std::string const& data) const {
        std::ofstream stream(path_, std::ios::binary | std::ios::trunc);
        uint64_t const length = header.size();
        stream.write(reinterpret_cast<char const*>(&length), sizeof(length));
        stream << header << data;
    }

    void overwrite(std::string const& beginning) const {
        std::fstream stream(path_, std::ios::binary | std::ios::in | std::ios::out);
        stream << beginning;
    }

private:
    std::string path_;
};

/** How often files were opened and refused. */
struct tally_t {
    int opened = 0, refused = 0;
};

/** Opens a file both ways: each must refuse it by its name, or answer a handle that can be described. */
bool try_both(executor_ptr const& executor, std::string const& path, tally_t& tally) {
    uform_trainer_options_t options{};
    options.resume = path.c_str();
    uform_trainer_t* resumed = nullptr;
    uform_model_t* opened = nullptr;
    auto const holds = [&](uform_status_t status, bool made, auto&& describe) {
        std::string const message = uform_last_error();
        if (status == uform_status_success_k) {
            ++tally.opened;
            char* text = nullptr;
            bool const described = made && describe(&text) == uform_status_success_k;
            uform_string_free(text);
            return described;
        }
        ++tally.refused;
        bool const expected = status == uform_status_invalid_argument_k || status == uform_status_file_k ||
                              status == uform_status_out_of_memory_k;
        bool const named = message.find(path) != std::string::npos;
        if (!expected || !named || made)
            std::fprintf(stderr, "status %d: %s\n", status, message.c_str());
        return expected && named && !made;
    };
    uform_status_t const trainer_status = uform_trainer_init_ram(executor.get(), &options, &resumed);
    trainer_ptr const trainer(resumed);
    bool const trainer_holds =
        holds(trainer_status, resumed, [&](char** text) { return uform_trainer_describe(resumed, text); });
    uform_status_t const model_status = uform_model_init_ram(executor.get(), path.c_str(), &opened);
    model_ptr const model(opened);
    return holds(model_status, opened, [&](char** text) { return uform_model_describe(opened, text); }) &&
           trainer_holds;
}

struct saved_t {
    temporary_folder folder;
    executor_ptr executor = make_executor(1, 1);
    damaged_file file{folder.file("damaged.safetensors")};
    std::string content;

    saved_t() {
        auto options = tiny_options(uform_objective_joint_k);
        options.depth = 1;
        trainer_ptr const trainer = make_trainer(executor, options);
        run_step(trainer, image_text_call());
        require(uform_trainer_save(trainer.get(), file.path().c_str(), nullptr, nullptr, 0), "save");
        content = read_file(file.path());
    }
};

void test_the_file_itself(saved_t const& saved) {
    tally_t tally;
    CHECK(try_both(saved.executor, saved.file.path(), tally) && tally.opened == 2);
}

/** Bytes overwritten: anywhere in the header, or digits and symbols of the configuration alone. */
void test_overwritten_headers(saved_t const& saved) {
    size_t const end = saved.content.size() - parts_t(saved.content).data.size();
    size_t const first = saved.content.find("\"configuration\""), last = saved.content.find("\"run.step\"");
    std::string_view const alphabet("{}[]\":,0123456789-+.eE\\trufalsn \x80\xff\0"sv);
    std::mt19937 random(5);
    tally_t tally;
    bool all_hold = true;
    for (int trial = 0; trial != 2000; ++trial) {
        std::string header = saved.content.substr(0, end);
        bool const digits = trial % 2;
        size_t const begin = digits ? first : 0, stop = digits ? last : end;
        for (size_t change = 0, changes = 1 + random() % 3; change != changes; ++change) {
            size_t at = begin + random() % (stop - begin);
            if (digits && trial % 4 == 1)
                at = std::min(header.find_first_of("0123456789", at), stop - 1);
            header[at] = trial % 4 == 1 ? static_cast<char>('0' + random() % 10) : alphabet[random() % alphabet.size()];
        }
        saved.file.overwrite(header);
        all_hold = try_both(saved.executor, saved.file.path(), tally) && all_hold;
    }
    saved.file.overwrite(saved.content.substr(0, end));
    CHECK(all_hold);
    CHECK(tally.refused > 2000 && tally.opened > 20);
}

/** Numbers of the configuration exchanged for others of any size, so that it still is one. */
void test_exchanged_numbers(saved_t const& saved) {
    parts_t const parts(saved.content);
    size_t const first = parts.header.find("\"configuration\""), last = parts.header.find("\"run.step\"");
    // None is a size that memory may hold and that nobody meant.
    constexpr char const* numbers[] = {"0",
                                       "-1",
                                       "1",
                                       "64",
                                       "2147483648",
                                       "4294967304",
                                       "1e30",
                                       "-1e-30",
                                       "9223372036854775807",
                                       "18446744073709551615",
                                       "0.5"};
    tally_t tally;
    bool all_hold = true;
    for (size_t at = first; (at = parts.header.find_first_of("0123456789", at)) < last;) {
        size_t const stop = parts.header.find_first_not_of("0123456789.e-", at);
        for (char const* number : numbers) {
            saved.file.write(parts.header.substr(0, at) + number + parts.header.substr(stop), parts.data);
            all_hold = try_both(saved.executor, saved.file.path(), tally) && all_hold;
        }
        at = stop;
    }
    CHECK(all_hold);
    CHECK(tally.refused > 500 && tally.opened > 20);
}

} // namespace

int main() {
    saved_t const saved;
    test_the_file_itself(saved);
    test_overwritten_headers(saved);
    test_exchanged_numbers(saved);
    return report();
}
